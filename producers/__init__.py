"""One package for each broker, and one for HTTP: settings, messages, producer, and the translation of the client's errors."""
