"""Who may do what: tokens, sessions, roles, rates."""
