"""The executor's lease, and the guard that ends all workers before it is over."""
