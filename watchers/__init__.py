"""Event triggers: one module per kind of source."""
