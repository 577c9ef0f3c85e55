"""`triggerer runs`: lists runs, prints their logs, and cancels or repeats them."""
