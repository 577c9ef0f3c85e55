"""Tells the service that its database was restored from a backup, and what that means for watchers and runs."""
