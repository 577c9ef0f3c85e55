"""Writes and reads asset events."""
