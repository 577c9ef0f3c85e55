"""Reads, writes and cleaning of runs and tasks."""
