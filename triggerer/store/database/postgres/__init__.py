"""PostgreSQL: the server that takes writes, scripts, and the sessions that hold locks."""
