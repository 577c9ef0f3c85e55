"""Faults that happen to watchers and streams in a simulated world."""
