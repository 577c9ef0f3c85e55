"""Reads and writes of streams: leases, fences, opening of new streams, and producer state."""
