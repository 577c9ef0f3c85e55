"""The HTTP API and the web page. They have a process of their own, so that no request delays a stream.

`triggerer standalone` binds the socket, and starts the API's process at the first connection. The command
`triggerer api` runs the API without the other parts of the service, and needs PostgreSQL. `triggerer.api.serving` runs
the application, `triggerer.api.app` assembles it, and each module of `triggerer.api.routes` has the routes of one noun.

A request passes the gate (host, path, headers), Litestar's routing, the guard (token or session, role, rate), and the
handler. The handler calls `triggerer.store` or `triggerer.operations`, as the commands do, and returns the result. So
an answer has the fields that a command prints with `--json`.
"""
