"""One package for each source: its settings, its messages, its producer, and the translation of its client's errors."""
