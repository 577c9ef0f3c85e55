"""Copies of runs' logs in a bucket of S3, for machines that do not last as long as their logs."""
