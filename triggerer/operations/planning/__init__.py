"""Computes what would change if another folder of DAG files replaced the present folder (`triggerer plan`)."""
