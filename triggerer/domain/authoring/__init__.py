"""The parts of DAG authoring that DAG files do not import directly: call arguments, `@asset`, source locations."""
