"""A folder for the PYTHONPATH of Spark's JVM, which imports these modules by their bare names."""
