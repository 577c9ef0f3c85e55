"""A model of the database: what is durable, and how transactions fail."""
