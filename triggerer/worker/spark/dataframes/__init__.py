"""Asset events as Spark DataFrames."""
