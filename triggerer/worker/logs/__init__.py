"""The log of a run on the disk: what writes it, what limits its size, and what reads it."""
