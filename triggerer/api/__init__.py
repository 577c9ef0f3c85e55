"""The HTTP API and the page. They have a process of their own, so that no request delays a stream.

`standalone` binds the socket, and starts this process at the first connection. `triggerer api` is the same process on
its own, with a PostgreSQL database. `triggerer.api.serving` runs the application, `triggerer.api.app` assembles it, and
each module of `triggerer.api.routes` has the routes of one noun.

A request passes the gate (host, path, headers), Litestar's routing, the guard (token or session, role, rate), and the
handler. The handler calls `triggerer.store` or `triggerer.operations`, as the commands do, and returns their views. So
an answer has the fields that `--json` prints.
"""
