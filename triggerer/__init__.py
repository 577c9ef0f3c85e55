"""Turns broker messages into durable asset events, and asset events into Spark runs."""
