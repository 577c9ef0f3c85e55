"""Reads DAG files: in a child process, as they change, into the store."""
