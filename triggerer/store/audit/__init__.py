"""The audit of changes: their actors, subjects and times."""
