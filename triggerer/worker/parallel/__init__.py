"""Tasks of one run side by side: threads, their time limits, and their output."""
