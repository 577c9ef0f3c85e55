"""Plain Python: what DAGs, assets, runs and their rules are. No await, no clock, no session, no SDK."""
