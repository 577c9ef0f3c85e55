"""Texts that are stored or shown: JSON, text that a database can store, and errors in one line."""
