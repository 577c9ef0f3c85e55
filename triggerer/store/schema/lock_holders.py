"""Finds the sessions that keep locks on the tables for long, so that an operator knows what a migration waits for."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_HOLDERS: Final = text("""
SELECT pid, application_name, extract(epoch FROM clock_timestamp() - xact_start)::int
FROM pg_stat_activity AS session
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND clock_timestamp() - xact_start > make_interval(secs => :seconds)
    AND EXISTS (
        SELECT FROM pg_locks JOIN pg_class ON pg_class.oid = relation
        WHERE pg_locks.pid = session.pid AND granted
            AND relnamespace = current_schema()::regnamespace
    )
ORDER BY xact_start LIMIT 5
""")


async def describe_lock_holders(connection: AsyncConnection, longer_than: timedelta) -> str:
    """Return the sessions that have locked tables in a transaction older than `longer_than`, as text for people."""
    rows = await connection.execute(_HOLDERS, {"seconds": longer_than.total_seconds()})
    holders = [f"pid {pid} ({name or 'no name'}, for {seconds} s)" for pid, name, seconds in rows]
    return ", ".join(holders) or "sessions that have ended since"
