"""The step that creates runs of many DAGs in one statement on PostgreSQL, without locking the DAGs beforehand.

The statement skips each DAG whose row has changed since the scheduler read it (optimistic locking).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from triggerer.domain.runs import RunState, RunType
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row
from triggerer.store.database.wakeups.notify import notify_cte
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.runs.creation.create_run_step import COLUMNS, RUN_ID_INSTANT, EventSelection
from triggerer.store.schema.models.dags import NEVER


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run to create."""

    run_type: RunType
    selection: EventSelection | None
    """The events that the run takes. None: no events. All planned runs of a DAG that take events have equal selections.
    """
    run_after: datetime | None
    """None: the instant of creation. Several such runs of a DAG are a microsecond apart."""
    logical_date: datetime | None = None
    interval: tuple[datetime, datetime] | None = None
    """The data interval of the run."""
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class NextRun:
    """The next run of a DAG's timetable."""

    run_after: datetime | None
    """None: the timetable has no next run."""
    interval: tuple[datetime, datetime] | None


@dataclass(frozen=True, slots=True)
class PlannedDag:
    """A scheduler's plan for a DAG. The plan is carried out only if the DAG's row still has the plan's `version`."""

    dag_id: str
    version: str
    """The version of the row (PostgreSQL's `xmin`) when the scheduler read it."""
    runs: tuple[PlannedRun, ...]
    """The runs to create, in order; may be empty."""
    next_run: NextRun | None
    """The next run of the timetable, to store in the DAG's row. None: the row shows it already."""


@dataclass(frozen=True, slots=True)
class CreateRuns:
    """A step: carry out the plans for these DAGs. The step is a whole transaction, for PostgreSQL only.

    It returns a row (DAG id, number of new runs) for each DAG whose plan was carried out. A DAG is skipped if its row
    in the table `dag` is locked, or has changed since the scheduler read it. A run whose id exists already is not
    created. Other processes are notified of the new runs.

    Args:
        sender: The id of this process. A process ignores the wake-ups that it sent itself.
    """

    dags: Sequence[PlannedDag]
    sender: str

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        # On SQLite the scheduler locks the database before it reads the DAGs, and creates runs with `CreateRun`.
        raise NotImplementedError("on SQLite the scheduler creates runs with CreateRun")

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        runs = [row for dag in self.dags for row in _run_rows(dag)]
        oldest = [row for dag in self.dags for row in _oldest_rows(dag)]
        arguments = [
            self.sender,
            *_columns((_dag_row(dag) for dag in self.dags), 7),
            *_columns(runs, 9),
        ]
        if oldest:
            arguments += _columns(oldest, 4)
        return _postgres(any(takes_all for *_, takes_all, _ in runs), bool(oldest)), arguments


def _columns(rows: Iterable[Row], number: int) -> list[list[Any]]:
    found = list(rows)
    return [list(column) for column in zip(*found, strict=True)] if found else [[]] * number


def _dag_row(dag: PlannedDag) -> Row:
    next_run = dag.next_run or NextRun(None, None)
    start, end = next_run.interval or (None, None)
    is_shown = dag.next_run is None
    return (
        dag.dag_id,
        dag.version,
        bool(dag.runs),
        is_shown,
        next_run.run_after or NEVER,
        start,
        end,
    )


def _run_rows(dag: PlannedDag) -> Iterable[Row]:
    number = 0
    for run in dag.runs:
        takes_all = run.selection is not None and run.selection.per_asset is None
        instants = (run.run_after, run.logical_date, *(run.interval or (None, None)))
        yield dag.dag_id, str(run.run_type), *instants, number, takes_all, run.partition_key
        if run.run_after is None:
            number += 1


def _oldest_rows(dag: PlannedDag) -> Iterable[Row]:
    """Yield a row for each asset, if the DAG's runs take only the oldest events of each asset. Otherwise yield nothing.

    A row is (DAG id, asset id, the most events that one run takes, the most events that all runs take).
    """
    taking = [run.selection for run in dag.runs if run.selection is not None]
    if not taking or (each := taking[0].per_asset) is None:
        return
    for asset_id in taking[0].asset_ids:
        yield dag.dag_id, asset_id, each, each * len(taking)


# The statement skips DAGs whose rows other transactions have locked, so two such statements never wait for each other.
# It also skips a DAG whose row no longer has the `xmin` that the scheduler read, because another scheduler may have
# created a run of the DAG since.
#
# PostgreSQL takes the statement's snapshot before `clock` reads the time. So if a run gets this time as its
# `run_after`, none of the run's events is later.
_POSTGRES: Final = f"""
asked AS (
    SELECT * FROM unnest($2::text[], $3::text[], $4::boolean[], $5::boolean[],
                         $6::timestamptz[], $7::timestamptz[], $8::timestamptz[])
        AS a(dag_id, version, has_runs, is_shown, run_after, interval_start, interval_end)
), held AS MATERIALIZED (
    SELECT d.dag_id, d.params, d.priority, d.pools
    FROM dag d JOIN asked a ON a.dag_id = d.dag_id
    WHERE d.xmin = a.version::xid
    ORDER BY d.dag_id
    FOR NO KEY UPDATE OF d SKIP LOCKED
), dag_row AS (
    UPDATE dag d SET
        last_run_at = CASE WHEN a.has_runs THEN clock_timestamp() ELSE d.last_run_at END,
        next_run_after = CASE WHEN a.is_shown THEN d.next_run_after ELSE a.run_after END,
        next_interval_start = CASE WHEN a.is_shown THEN d.next_interval_start ELSE a.interval_start END,
        next_interval_end = CASE WHEN a.is_shown THEN d.next_interval_end ELSE a.interval_end END
    FROM asked a JOIN held h ON h.dag_id = a.dag_id
    WHERE d.dag_id = a.dag_id
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), planned AS MATERIALIZED (
    SELECT r.dag_id, r.run_type || '__' || to_char(r.at AT TIME ZONE 'UTC', '{RUN_ID_INSTANT}') AS run_id,
           r.run_type, r.at, r.queued_at, h.params, r.logical_date, r.interval_start, r.interval_end,
           h.priority, h.pools, r.number, r.takes_all, r.partition_key, r.place
    FROM (
        SELECT u.*, coalesce(u.run_after, c.now + u.number * interval '1 microsecond') AS at,
               CASE WHEN u.run_after IS NULL THEN c.now + u.number * interval '1 microsecond'
                    ELSE c.now END AS queued_at
        FROM unnest($9::text[], $10::text[], $11::timestamptz[], $12::timestamptz[], $13::timestamptz[],
                    $14::timestamptz[], $15::bigint[], $16::boolean[], $17::text[]) WITH ORDINALITY
            AS u(dag_id, run_type, run_after, logical_date, interval_start, interval_end, number, takes_all,
                 partition_key, place)
        CROSS JOIN clock c
    ) r JOIN held h ON h.dag_id = r.dag_id
), run AS (
    INSERT INTO dag_run ({COLUMNS})
    SELECT dag_id, run_id, run_type, '{RunState.QUEUED}', at, queued_at, params, 0, false,
           logical_date, interval_start, interval_end, partition_key, priority, pools
    FROM planned ORDER BY place
    ON CONFLICT (dag_id, run_id) DO NOTHING
    RETURNING id, dag_id, run_id
)"""
# `_TAKE` assigns waiting events to the new runs. `_ALL` and `_OLDEST` find the places (`ctid`) of
# these events with a lateral query for each DAG. With a plain join instead, a planner that assumes
# an empty queue would read the waiting events of all DAGs. `coalesce(...) = -1` means `IS NULL`,
# but does not match the partial index. So the planner has to find the rows by their places.
_TAKE: Final = """{name} AS (
    UPDATE queued_asset_event q SET run_pk = t.run_pk FROM ({found}) AS t
    WHERE q.ctid = t.place AND coalesce(q.run_pk, -1) = -1
)"""
_ALL: Final = """
    SELECT run.id AS run_pk, w.place
    FROM run JOIN planned p ON p.dag_id = run.dag_id AND p.run_id = run.run_id,
        LATERAL (SELECT o.ctid AS place FROM queued_asset_event o
                 WHERE o.dag_id = run.dag_id AND o.run_pk IS NULL OFFSET 0) AS w
    WHERE p.takes_all
"""
# If several runs of a DAG are created, the first takes the oldest events of each asset, the second the next oldest.
_OLDEST: Final = f"""
    SELECT run.id AS run_pk, w.place
    FROM unnest($18::text[], $19::bigint[], $20::bigint[], $21::bigint[]) AS s(dag_id, asset_id, each, most)
        CROSS JOIN LATERAL (SELECT v.place, (row_number() OVER (ORDER BY v.id) - 1) / s.each AS number
                 FROM (SELECT o.ctid AS place, o.asset_event_id AS id FROM queued_asset_event o
                       WHERE o.dag_id = s.dag_id AND o.asset_id = s.asset_id AND o.run_pk IS NULL
                       ORDER BY o.asset_event_id LIMIT s.most) AS v) AS w
    JOIN planned p ON p.dag_id = s.dag_id AND p.number = w.number AND p.run_type = '{RunType.ASSET_TRIGGERED}'
    JOIN run ON run.dag_id = p.dag_id AND run.run_id = p.run_id
"""


@cache
def _postgres(takes_all: bool, takes_oldest: bool) -> str:
    parts = [_POSTGRES]
    if takes_all:
        parts.append(_TAKE.format(name="taken", found=_ALL))
    if takes_oldest:
        parts.append(_TAKE.format(name="taken_oldest", found=_OLDEST))
    ids = "SELECT array_agg(DISTINCT dag_id) FROM run"
    parts.append(notify_cte(Signal.RUNS_QUEUED, sender="$1", dag_ids=ids))
    return f"""WITH {", ".join(parts)}
SELECT h.dag_id, count(run.id) FROM held h LEFT JOIN run ON run.dag_id = h.dag_id
WHERE (SELECT count(*) FROM notified) >= 0
GROUP BY h.dag_id"""
