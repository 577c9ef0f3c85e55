"""The parts of the watchers of files: claiming a file, remembering it, and the producers that scan a directory."""
