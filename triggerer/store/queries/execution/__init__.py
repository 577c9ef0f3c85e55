"""The executor's queries, and what it writes about runs and tasks."""
