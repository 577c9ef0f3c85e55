"""PostgreSQL: the server that takes writes, scripts, and sessions that keep locks."""
