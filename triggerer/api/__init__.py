"""The HTTP API and the web page. They have a process of their own, so that no request delays a stream.

`triggerer standalone` binds the socket, and starts the API's process at the first connection (`[api] start`). The
command `triggerer api` runs the API without the other parts of the service, and needs PostgreSQL.

A request first passes the gate (`gate`), which checks the host and the path. Litestar then finds the route. The guard
(`access.authorizing`) checks the token or session, the role and the rate. Last, a handler in `routes` calls
`triggerer.store` or `triggerer.operations`, as the commands do. So an answer has the fields that a command prints with
`--json`.
"""
