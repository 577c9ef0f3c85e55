"""Reads and writes DAGs: updates from the DAG files, due moments, snapshots for the scheduler, lists."""
