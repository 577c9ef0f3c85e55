"""The queries of the commands that list and show."""
