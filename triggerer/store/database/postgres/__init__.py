"""PostgreSQL: finds the server that takes the writes, performs scripts, and ends stuck sessions."""
