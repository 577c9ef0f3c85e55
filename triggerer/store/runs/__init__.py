"""Reads, writes and deletes runs and their tasks."""
