"""The events of a run as Parquet files, for tasks that read very many of them."""
