"""Writes the log of a run to the disk, limits its size, and reads it."""
