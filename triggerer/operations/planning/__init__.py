"""What other DAG files would change: the operation behind `triggerer plan`."""
