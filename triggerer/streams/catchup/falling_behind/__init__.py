"""Decides which watchers fall behind after a message failed."""
