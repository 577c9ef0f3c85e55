"""Metrics: counters, which the service's parts raise once for each batch, gauges, which a scrape reads, and a table."""
