"""Committed positions, and where the partitions of an assignment are read from."""
