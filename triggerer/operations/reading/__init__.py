"""Answers besides the lists: settings, the reasons for a run, and why a log is missing."""
