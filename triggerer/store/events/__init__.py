"""Asset events on their way into the tables, and reads of them."""
