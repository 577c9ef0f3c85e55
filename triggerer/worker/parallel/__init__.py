"""Executes tasks of one run at the same time: threads, their time limits, and their output."""
