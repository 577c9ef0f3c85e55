"""What DAG files define: the parsed values, how files are merged, and when a missing file counts as deleted."""
