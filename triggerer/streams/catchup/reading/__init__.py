"""Reads the backlog of a watcher, from a log or from stored messages, up to the handover to live delivery."""
