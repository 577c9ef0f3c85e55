"""Reads, writes and cleaning of backfills."""
