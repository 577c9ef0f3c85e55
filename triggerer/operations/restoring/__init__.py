"""Tells the service that its database was restored from a backup, and finds the effects on watchers and runs."""
