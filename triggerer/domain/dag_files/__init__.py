"""The content of DAG files: parsed values, merging of files, and the rule for missing files."""
