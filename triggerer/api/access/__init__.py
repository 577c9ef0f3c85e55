"""Access to the API: tokens, sessions, roles and rates."""
