"""Creates runs: one run within a script, or the runs of many planned DAGs in one statement."""
