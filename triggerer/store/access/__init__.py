"""Access to the HTTP API: tokens, sessions, login links and the tokens of runs."""
