"""A world of two executors that execute the runs of one store."""
