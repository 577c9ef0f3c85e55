"""The executor's slots, their workers, and the processes that the workers fork for runs."""
