"""Finds occurrences that people were not notified of, and stores the notifications until targets accept them."""
