"""`triggerer runs`: what ran, what it logged, and what a person can do about it."""
