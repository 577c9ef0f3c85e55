"""Opens the streams of the hosted triggers, and restarts streams and triggers that have failed."""
