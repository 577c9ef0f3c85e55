"""A world of two executors that share the runs of a store."""
