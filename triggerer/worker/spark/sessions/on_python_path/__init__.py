"""The modules that Spark's Python processes import by bare names: Spark's JVM has this folder on its PYTHONPATH."""
