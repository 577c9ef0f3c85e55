"""One module per question that is asked of the database; functions that take a session."""
