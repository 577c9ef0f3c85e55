"""Ends stuck sessions: sessions that keep locks because their process was stopped or cut off.

The server itself ends a session that is idle in a transaction (`triggerer.store.database.postgres.primary.SETTINGS`).
But a session can also be stuck within a statement, in state `active`:

- The session waits for the statement's arguments. A driver sends them only after the server has prepared the statement.
- The session waits for the client to read the rows.

`statement_timeout` ends neither kind of session. PostgreSQL 17's `transaction_timeout` does not end the second kind.

This module searches for all sessions that hold locks, not only for sessions that block others. A process that takes
over the work of a dead process skips locked rows. So no session is blocked, and yet the work is not done.
"""

from __future__ import annotations

from typing import Any, Final

import asyncpg

from triggerer.observability.logging_setup import LazyLogger
from triggerer.store.database.postgres.primary import STATEMENT_TIMEOUT_S

_log = LazyLogger(__name__)

# How long a session may wait for its client to send a statement's arguments. Equal to
# `idle_in_transaction_session_timeout`.
SENDS_NOTHING_FOR_S: Final = 10.0
# How long a session may wait for its client to read the rows. This limit is longer than the one above, because a client
# may read many rows over a slow network.
READS_FOR_S: Final = STATEMENT_TIMEOUT_S
# COPY is exempt: a restore or a copy of a table also holds locks while its client is slow.
_END: Final = """
SELECT pid, application_name, host(client_addr) AS client, wait_event AS waits, left(query, 200) AS statement,
    extract(epoch FROM clock_timestamp() - state_change)::int AS since_s,
    pg_terminate_backend(pid) AS ended
FROM pg_stat_activity AS session
WHERE datname = current_database() AND usename = session_user AND pid <> pg_backend_pid()
    AND state = 'active'
    AND clock_timestamp() - state_change > make_interval(
        secs => CASE wait_event WHEN 'ClientRead' THEN $1::float8 WHEN 'ClientWrite' THEN $2::float8 END
    )
    AND query !~* '^\\s*copy\\M'
    AND EXISTS (
        SELECT FROM pg_locks AS held
        WHERE held.pid = session.pid AND held.granted
            AND (
                held.locktype = 'advisory'
                OR held.mode NOT IN ('AccessShareLock', 'SIReadLock') AND held.relation IN (
                    SELECT pg_class.oid FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
                    WHERE nspname = current_schema()
                )
            )
    )
"""
# The query fails with these errors if the user may not read the statistics views. A server that is not PostgreSQL may
# lack the views.
_CANNOT: Final = (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError)


async def end_stuck_sessions(connection: Any) -> None:
    """End this user's sessions that lock our tables and have waited too long for their client.

    The server rolls back their transactions. A session that is committing does not wait for its client, so it is never
    ended.
    """
    try:
        found = await connection.fetch(_END, SENDS_NOTHING_FOR_S, READS_FOR_S)
    except _CANNOT as error:
        _log.debug("cannot look for stuck sessions", error=str(error))
        return
    for session in found:
        if session["ended"]:
            _log.warning(
                "a session was ended: it kept locks, and its client had stopped or was cut off",
                **{key: value for key, value in session.items() if key != "ended"},
            )
