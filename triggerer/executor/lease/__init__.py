"""The executor's lease, and the guard process, which ends all workers before the lease is over."""
