"""NOTIFY as a part of a statement, so that one round trip is a whole transaction with its announcement."""

from __future__ import annotations

from triggerer.store.wakeups.signals import ALL, Signal
from triggerer.store.wakeups.transport import CHANNEL, MAX_PAYLOAD


def telling(signal: Signal, *, sender: str, dag_ids: str) -> str:
    """PostgreSQL: the common table expression `told`, which announces `signal` to other processes.

    It has a row if something was announced, and is evaluated only if the statement asks for it.

    Args:
        sender: The parameter that holds how this process knows its own announcements: `$1`, say.
        dag_ids: What gives one row with one column, an array of DAG ids or NULL.
    """
    return f"""told AS (
    SELECT pg_notify('{CHANNEL}', CASE WHEN octet_length(text) <= {MAX_PAYLOAD} THEN text ELSE
        json_build_object('from', {sender}::text, '{signal}', json_build_array('{ALL}'))::text END)
    FROM (
        SELECT json_build_object('from', {sender}::text, '{signal}', dag_ids)::text AS text
        FROM ({dag_ids}) AS changed(dag_ids) WHERE dag_ids IS NOT NULL
    ) AS message
)"""
