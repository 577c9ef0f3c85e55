"""Ranges of offsets: how far events cover each partition, and which offsets are new. No message is read."""
