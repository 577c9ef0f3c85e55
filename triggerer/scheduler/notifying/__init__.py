"""Tells people about failing watchers, parked messages and failed runs: finds them in the store, and sends messages."""
