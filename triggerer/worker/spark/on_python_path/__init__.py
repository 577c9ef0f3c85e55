"""A folder for the PYTHONPATH of Spark's JVM: its modules are found by their bare names."""
