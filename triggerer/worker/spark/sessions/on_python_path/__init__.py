"""A folder on the PYTHONPATH of Spark's JVM, whose Python processes import these modules by their bare names."""
