"""Spark sessions: classic or over Connect, shared or a run's own, and the waits for a cluster or a server."""
