"""Spark applications that a task submits: in client mode as a child process, in cluster mode by a launcher."""
