"""Puts NOTIFY into a statement, so that a transaction and its announcement take one round trip."""

from __future__ import annotations

from triggerer.store.database.wakeups.signals import ALL, Signal
from triggerer.store.database.wakeups.transport import CHANNEL, MAX_PAYLOAD


def notify_cte(signal: Signal, *, sender: str, dag_ids: str) -> str:
    """Return PostgreSQL's common table expression `notified`, which announces `signal` to other processes.

    The surrounding statement must read from `notified`, because PostgreSQL skips an unused expression. `notified` has
    one row, or none if there was nothing to announce. If the DAG ids are too long for NOTIFY, all DAGs are announced.

    Args:
        sender: The parameter with the id of this process, such as `$1`. The process ignores announcements with its own
            id.
        dag_ids: A query for one row with one column: an array of DAG ids, or NULL to announce nothing.
    """
    return f"""notified AS (
    SELECT pg_notify('{CHANNEL}', CASE WHEN octet_length(text) <= {MAX_PAYLOAD} THEN text ELSE
        json_build_object('from', {sender}::text, '{signal}', json_build_array('{ALL}'))::text END)
    FROM (
        SELECT json_build_object('from', {sender}::text, '{signal}', dag_ids)::text AS text
        FROM ({dag_ids}) AS changed(dag_ids) WHERE dag_ids IS NOT NULL
    ) AS message
)"""
