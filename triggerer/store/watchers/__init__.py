"""Reads, writes and cleaning of watchers: their triggers, positions, parked messages and replays."""
