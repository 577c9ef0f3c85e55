"""Finds occurrences that nobody was told about, and stores the messages to people until targets accept them."""
