"""Counts and lists the events that wait for DAGs. The cost of each query is bounded, however many events wait.

An event waits in `queued_asset_event`. If the DAG is partitioned, the scheduler divides the event into shares, one for
each partition key. The shares wait in `dag_partition_event`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from triggerer.domain.partitions.dividing import KeyedEvent
from triggerer.store.dags.snapshots import NEWEST_EVENTS
from triggerer.store.database.script import Script
from triggerer.store.database.statement import (
    ParameterRows,
    Statement,
    in_list,
    instant_from,
    parameter_rows,
)
from triggerer.store.partitions.keys import keyed_events
from triggerer.store.runs.creation.create_run_step import HINT

Counts = Mapping[tuple[int, str, str], int]
"""Asset (id, name, URI) to the number of its waiting events."""

_SHARES_HINT: Final = ("INDEXED BY ix_dag_partition_event_waiting", "")
"""SQLite's and PostgreSQL's text after the table name `dag_partition_event`. SQLite needs the name of the index."""

# `_QUEUED` finds the assets in the queue one after another, with one index look-up for each. It does not read the DAG's
# condition, so it also finds events of assets that the condition no longer names.
_QUEUED: Final = Statement(
    """
WITH RECURSIVE n (dag_id, asset_id) AS (
    SELECT d.dag_id, (SELECT q.asset_id FROM queued_asset_event q {HINT}
                      WHERE q.dag_id = d.dag_id AND q.run_pk IS NULL ORDER BY q.asset_id LIMIT 1)
    FROM dag d WHERE d.dag_id {IN_DAGS}
    UNION ALL
    SELECT n.dag_id, (SELECT q.asset_id FROM queued_asset_event q {HINT}
                      WHERE q.dag_id = n.dag_id AND q.run_pk IS NULL AND q.asset_id > n.asset_id
                      ORDER BY q.asset_id LIMIT 1)
    FROM n WHERE n.asset_id IS NOT NULL
)
SELECT n.dag_id, a.id, a.name, a.uri,
       (SELECT count(*) FROM (SELECT 1 FROM queued_asset_event c {HINT}
                              WHERE c.dag_id = n.dag_id AND c.asset_id = n.asset_id AND c.run_pk IS NULL
                              ORDER BY c.asset_event_id LIMIT {bound}) AS counted)
FROM n JOIN asset a ON a.id = n.asset_id
""",
    HINT=HINT,
    IN_DAGS=in_list("dag_ids", "text"),
)
_FIRST_SHARES: Final = """FROM (
            SELECT p.asset_event_id FROM dag_partition_event p {SHARES_HINT}
            WHERE p.dag_id = d.dag_id AND p.run_pk IS NULL
            ORDER BY p.partition_key, p.asset_id, p.asset_event_id LIMIT {limit}) AS s"""
# `_WAITING` counts rows of `queued_asset_event` and of `dag_partition_event`. It reads only the first rows of each
# table, in the order of an index.
_WAITING: Final = Statement(
    f"""
SELECT d.dag_id,
       (SELECT count(*) FROM (
            SELECT 1 FROM queued_asset_event q {{HINT}} WHERE q.dag_id = d.dag_id AND q.run_pk IS NULL
            ORDER BY q.asset_id, q.asset_event_id LIMIT {{limit}}) AS u),
       (SELECT count(*) {_FIRST_SHARES}),
       (SELECT count(DISTINCT asset_event_id) {_FIRST_SHARES})
FROM dag d WHERE d.dag_id {{IN_DAGS}}
""",
    HINT=HINT,
    SHARES_HINT=_SHARES_HINT,
    IN_DAGS=in_list("dag_ids", "text"),
)
_SHARED: Final = Statement(
    """
SELECT a.id, a.name, a.uri, count(DISTINCT s.asset_event_id)
FROM (SELECT p.asset_id, p.asset_event_id FROM dag_partition_event p {HINT}
      WHERE p.dag_id = {dag_id} AND p.run_pk IS NULL
      ORDER BY p.partition_key, p.asset_id, p.asset_event_id LIMIT {bound}) AS s
JOIN asset a ON a.id = s.asset_id
GROUP BY a.id, a.name, a.uri
""",
    HINT=_SHARES_HINT,
)
# `_SOME` takes at most `limit` rows of each of the two tables, in the order of an index, and reads no others.
_SOME: Final = Statement(
    """
SELECT w.id, w.asset_id, a.name, a.uri, e.partition_key, e.timestamp
FROM (SELECT u.id, u.asset_id
      FROM (SELECT q.asset_event_id AS id, q.asset_id FROM queued_asset_event q {HINT}
            WHERE q.dag_id = {dag_id} AND q.run_pk IS NULL
            ORDER BY q.asset_id, q.asset_event_id LIMIT {limit}) AS u
      UNION
      SELECT s.id, s.asset_id
      FROM (SELECT p.asset_event_id AS id, p.asset_id FROM dag_partition_event p {SHARES_HINT}
            WHERE p.dag_id = {dag_id} AND p.run_pk IS NULL
            ORDER BY p.partition_key, p.asset_id, p.asset_event_id LIMIT {limit}) AS s) AS w
{EVENT}
JOIN asset a ON a.id = w.asset_id
ORDER BY w.id LIMIT {limit}
""",
    HINT=HINT,
    SHARES_HINT=_SHARES_HINT,
    # On PostgreSQL a plain join may read the whole table of events. LIMIT forces one look-up for each row.
    EVENT=(
        "JOIN asset_event e ON e.id = w.id",
        """CROSS JOIN LATERAL (SELECT o.partition_key, o.timestamp FROM asset_event o
                    WHERE o.id = w.id LIMIT 1) AS e""",
    ),
)
# `_USED` makes one look-up for each given share. A join is not used, because PostgreSQL might then read all shares that
# the DAG's runs have taken.
_USED: Final = Statement(
    """
SELECT r.partition_key, r.asset_event_id FROM {ROWS} AS r
WHERE (SELECT p.run_pk FROM dag_partition_event p
       WHERE p.dag_id = {dag_id} AND p.partition_key = r.partition_key AND p.asset_event_id = r.asset_event_id
       LIMIT 1) IS NOT NULL
""",
    ROWS=parameter_rows(partition_key="text", asset_event_id="bigint"),
)
_LAST_RUN: Final = Statement(
    """
SELECT r.run_id, r.state FROM dag_run r WHERE r.dag_id = {dag_id} AND r.run_type <> 'backfill'
ORDER BY r.id DESC LIMIT 1
"""
)
_LAST_KIND: Final = Statement(
    """
SELECT r.run_type FROM dag_run r
WHERE r.dag_id = {dag_id} AND r.run_type IN ('scheduled', 'asset_triggered')
ORDER BY r.id DESC LIMIT 1
"""
)
_NEWEST: Final = Statement(
    """
SELECT max(timestamp) FROM (
    SELECT e.timestamp FROM queued_asset_event c {HINT} JOIN asset_event e ON e.id = c.asset_event_id
    WHERE c.dag_id = {dag_id} AND c.asset_id = {asset_id} AND c.run_pk IS NULL
    ORDER BY c.asset_event_id DESC LIMIT {limit}) AS newest
WHERE timestamp <= {soon}
""",
    HINT=HINT,
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The number of events that wait for a DAG."""

    events: int = 0
    is_counted_short: bool = False
    """True if counting stopped at the bound, so that more events may wait."""


def count_waiting(dag_ids: Sequence[str], *, bound: int) -> Script[dict[str, Waiting]]:
    """Return, by DAG, the number of waiting events, whether divided into shares or not. Counting stops at `bound`."""
    rows = yield _WAITING(dag_ids=list(dag_ids), limit=bound + 1)
    return {
        dag_id: Waiting(
            min(queued + events, bound), is_counted_short=max(queued + events, shares) > bound
        )
        for dag_id, queued, shares, events in rows
    }


def count_queued(dag_ids: Sequence[str], *, bound: int) -> Script[dict[str, Counts]]:
    """Return, by DAG, how many events of each asset are queued and not yet divided.

    Counting stops at `bound` per asset. DAGs without queued events are left out.
    """
    found: dict[str, dict[tuple[int, str, str], int]] = {}
    for dag_id, *asset, count in (yield _QUEUED(dag_ids=list(dag_ids), bound=bound)):
        asset_id, name, uri = asset
        found.setdefault(dag_id, {})[asset_id, name, uri] = count
    return dict(found)


def count_shared(dag_id: str, *, bound: int) -> Script[Counts]:
    """Return, by asset, the number of different events among the first `bound` shares that wait for the DAG."""
    rows = yield _SHARED(dag_id=dag_id, bound=bound)
    return {(asset_id, name, uri): count for asset_id, name, uri, count in rows}


def waiting_events(dag_id: str, *, limit: int) -> Script[list[KeyedEvent]]:
    """Return up to `limit` events that wait for the DAG, whether divided into shares or not, sorted by id.

    No event comes twice.
    """
    return keyed_events((yield _SOME(dag_id=dag_id, limit=limit)))


def find_used_shares(
    dag_id: str, shares: Iterable[tuple[str, int]]
) -> Script[frozenset[tuple[str, int]]]:
    """Return the given pairs (partition key, event id) whose share a run uses."""
    rows = list(shares)
    if not rows:
        return frozenset()
    found = yield _USED(dag_id=dag_id, rows=ParameterRows(rows))
    return frozenset((str(key), int(event)) for key, event in found)


def last_runs(dag_id: str) -> Script[tuple[tuple[str, str] | None, str | None]]:
    """Return (id, state) of the newest run outside backfills, and the type of the newest automatic run.

    A run is automatic if its type is `scheduled` or `asset_triggered`.
    """
    runs = yield _LAST_RUN(dag_id=dag_id)
    kinds = yield _LAST_KIND(dag_id=dag_id)
    last = None if not runs else (str(runs[0][0]), str(runs[0][1]))
    return last, str(kinds[0][0]) if kinds else None


def newest_queued(
    dag_id: str, asset_ids: Sequence[int], *, soon: datetime
) -> Script[list[datetime]]:
    """Return the timestamp of each asset's latest queued event. Assets without such an event are left out.

    For each asset, only the `NEWEST_EVENTS` events with the highest ids are read.

    Args:
        soon: The present instant, plus a tolerance. Later events are ignored, because they were recorded before the
            clock was set back.
    """
    found = []
    for asset_id in asset_ids:
        rows = yield _NEWEST(dag_id=dag_id, asset_id=asset_id, limit=NEWEST_EVENTS, soon=soon)
        found += [instant for (at,) in rows if (instant := instant_from(at)) is not None]
    return found
