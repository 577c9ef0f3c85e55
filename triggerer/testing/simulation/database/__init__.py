"""A model of the database: its durable rows, and transactions that may fail."""
