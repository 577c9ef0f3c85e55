"""Metrics: counters that parts raise once for each batch, gauges that are read at a scrape, and their table."""
