"""The simulated worlds: processes, hosts and DAG files, and what happens to them."""
