"""Finds ranges of new offsets, and remembers up to which offset each partition has events. No message is read."""
