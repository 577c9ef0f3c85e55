"""Metrics: counters that the service's parts raise, gauges that are read at a scrape, and a table of all metrics."""
