"""Asset events from lines that are appended to files."""
