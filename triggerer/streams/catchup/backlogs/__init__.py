"""Backlogs: the watchers that are behind, the lanes, and the positions."""
