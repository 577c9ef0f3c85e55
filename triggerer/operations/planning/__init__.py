"""Compares other DAG files with the present ones: the operation behind `triggerer plan`."""
