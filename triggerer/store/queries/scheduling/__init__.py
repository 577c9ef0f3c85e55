"""What the scheduler asks, and the runs that it makes."""
