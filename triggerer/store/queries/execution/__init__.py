"""What the executor asks, and what it writes of runs and tasks."""
