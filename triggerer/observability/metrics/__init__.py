"""Metrics: counters that the service's parts increase, gauges that are read at a scrape, and a table of all metrics."""
