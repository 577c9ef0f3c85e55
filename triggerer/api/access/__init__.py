"""Access to the API: API tokens, sessions, roles and rate limits. In `triggerer.api` a token is always an API token."""
