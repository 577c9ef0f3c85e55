"""Timetables that follow cron expressions."""
