"""Modules that Spark's Python processes import. This folder is on the PYTHONPATH of Spark's JVM."""
