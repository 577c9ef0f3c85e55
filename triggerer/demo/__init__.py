"""`triggerer demo`: runs the whole service with an embedded broker on real data."""
