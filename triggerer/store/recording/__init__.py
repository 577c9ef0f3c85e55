"""Asset events on their way into the tables, many in one transaction."""
