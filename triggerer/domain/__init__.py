"""DAGs, assets, runs and their rules, in plain Python: no await, no clock, no session, no SDK."""
