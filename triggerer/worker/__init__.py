"""The worker's side of a run: the fork server, and the process of each run, which executes the user's tasks."""
