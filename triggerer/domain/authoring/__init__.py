"""The parts of DAG authoring that DAG files do not import by name: call arguments, `@asset`, source locations."""
