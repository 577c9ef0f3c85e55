"""`triggerer dags`: lists and pauses DAGs, queues runs and backfills, and tests a DAG in the foreground."""
