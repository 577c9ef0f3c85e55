"""Spark sessions: classic, Connect, one for each run, and the waits for their cluster."""
