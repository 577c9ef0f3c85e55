"""Copies of runs' logs in a bucket of S3, because a machine may be removed while its logs are still needed."""
