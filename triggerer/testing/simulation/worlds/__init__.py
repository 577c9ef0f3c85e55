"""The simulated worlds: processes, hosts and DAG files, and the actions of operators, users and networks."""
