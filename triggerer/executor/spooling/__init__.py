"""Writes the events of a run into Parquet files, for tasks that read very many events."""
