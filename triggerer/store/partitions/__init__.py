"""Reads and writes of partition keys: what has arrived for each key, and the run that took it."""
