"""Deletes what is old and needed no more: ended runs, their backfills, and asset events."""
