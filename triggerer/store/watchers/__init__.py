"""Reads, writes and deletes the data of watchers: triggers, positions, parked messages and replay requests."""
