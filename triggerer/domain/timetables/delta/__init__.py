"""Timetables with a fixed length of time between runs."""
