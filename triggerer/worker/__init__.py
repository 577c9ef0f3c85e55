"""The worker's side of a run: the process that runs the user's tasks."""
