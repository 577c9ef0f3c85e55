"""Backlogs: which watchers are behind, in which lanes, and from which position."""
