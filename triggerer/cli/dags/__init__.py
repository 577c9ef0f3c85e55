"""`triggerer dags`: the DAGs, their backfills, and a run in the foreground."""
