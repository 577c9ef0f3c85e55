"""Reads and writes partition keys: the events that arrived for each key, and the run that took them."""
