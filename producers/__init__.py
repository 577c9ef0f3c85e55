"""One package for each broker, and one for HTTP: its settings, messages, producer, and translation of errors."""
