"""Reads the backlog of a watcher, from a log or from stored messages, until live delivery takes over."""
