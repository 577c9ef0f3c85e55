"""Runs the second filter of a watcher that catches up, and decides the outcome of each message."""
