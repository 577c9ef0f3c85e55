"""Ranges of offsets: how far each partition has been given out, and what is new in it. No message is read."""
