"""Reads, writes and deletes backfills."""
