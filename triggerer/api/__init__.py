"""The HTTP API and the web page. They have a process of their own, so that no request delays a stream.

`triggerer standalone` binds the socket. By default (`[api] start`), it starts the API's process at the first
connection. The command `triggerer api` runs the API without the other parts of the service, and needs PostgreSQL.

The steps of a request:

1. The gate (`gate`) checks the host and the path.
2. Litestar finds the route.
3. The guard (`access.authorizing`) checks the token or session, the role and the rate.
4. A handler in `routes` calls `triggerer.store` or `triggerer.operations`. The commands call the same functions, so an
   answer has the fields that a command prints with `--json`.
"""
