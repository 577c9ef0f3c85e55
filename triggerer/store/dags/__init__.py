"""Reads and writes of DAGs: sync with the DAG files, due moments, snapshots for the scheduler, lists."""
