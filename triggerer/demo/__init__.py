"""`triggerer demo`: the whole service on embedded defaults, doing a real job on real data."""
