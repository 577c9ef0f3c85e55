"""Worlds of schedulers: DAGs with timetables, and DAGs with partition keys."""
