"""Finds failing watchers, parked messages and failed runs in the store, and sends notifications about them."""
