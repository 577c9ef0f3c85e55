"""Reads everything about DAGs that the scheduler needs for its decisions, in one statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Script
from triggerer.store.database.statement import (
    BoundStatement,
    Statement,
    in_list,
    instant_from,
    json_from,
    sqlite_instant,
)
from triggerer.store.runs.creation.create_run_step import HINT

NEWEST_EVENTS: Final = 16
"""How many of an asset's queued events are read, to find the instant of the newest event.

The events with the highest ids are read.

A DAG with a `quiet_period` starts once this period has passed since the newest event. If the clock was set back, the
last events may lie in the future, and are ignored. So reading only one event would not be enough.
"""

CLOCK_STEP: Final = timedelta(minutes=1)
"""A run or an event is ignored if its instant is further in the future than this.

With no tolerance, a small correction of the clock could create a timetable's run twice, or end a quiet period too
early.
"""

_SOON: Final = f"statement_timestamp() + interval '{CLOCK_STEP.total_seconds():g} s'"
_SINCE: Final = """coalesce((
                SELECT l.logical_date FROM dag_run l
                WHERE l.dag_id = d.dag_id AND l.logical_date IS NOT NULL
                  AND l.run_type IN ('scheduled', 'asset_triggered') AND l.run_after <= {soon}
                ORDER BY l.run_after DESC LIMIT 1), {never})"""

# `DagRow` describes the rows.
#
# With ORDER BY and LIMIT 1, PostgreSQL needs one index look-up to find out whether an asset has queued events. EXISTS
# would become a join with the whole queue. Without ORDER BY, PostgreSQL would read all queued events of an asset that
# the DAG no longer names.
_SNAPSHOT: Final = Statement(
    """
SELECT d.dag_id, {SCHEDULE}, {PARAMS}, d.max_active_runs, d.events_per_run, d.is_paused, d.is_stale,
       d.start_date, d.end_date, d.catchup, d.min_run_gap, d.quiet_period, d.depends_on_past,
       d.next_run_after, d.next_interval_start, d.next_interval_end, d.last_run_at,
       {NOW} AS now, {VERSION} AS version,
       (SELECT count(*) FROM dag_run r
        WHERE r.dag_id = d.dag_id AND r.state IN ('queued', 'running')) AS active_runs,
       (SELECT {LAST} FROM dag_run r
        WHERE r.dag_id = d.dag_id AND r.logical_date IS NOT NULL
          AND r.run_type IN ('scheduled', 'asset_triggered') AND r.run_after <= {SOON}
        ORDER BY r.run_after DESC LIMIT 1) AS last_automated,
       (SELECT {MADE} FROM (
            SELECT i.data_interval_start, i.data_interval_end
            FROM backfill f JOIN backfill_interval i ON i.backfill_id = f.id
            WHERE f.dag_id = d.dag_id AND f.to_date >= {SINCE} AND i.logical_date >= {SINCE}
              AND i.state = 'started'
            UNION ALL
            SELECT r.data_interval_start, r.data_interval_end FROM dag_run r
            WHERE r.dag_id = d.dag_id AND r.run_after > {EARLIEST} AND r.data_interval_end > {SINCE}
              AND r.logical_date IS NOT NULL AND r.run_type IN ('scheduled', 'asset_triggered')
              AND r.run_type = 'asset_triggered'
        ) AS m) AS covered_intervals,
       CASE WHEN d.depends_on_past THEN
           (SELECT {PAST} FROM dag_run r WHERE r.dag_id = d.dag_id AND r.run_type <> 'backfill'
            ORDER BY r.id DESC LIMIT 1) END AS last_run,
       CASE WHEN {EITHER} THEN
           (SELECT r.run_type FROM dag_run r
            WHERE r.dag_id = d.dag_id AND r.run_type IN ('scheduled', 'asset_triggered')
            ORDER BY r.id DESC LIMIT 1) END AS last_kind,
       w.asset_id, w.name, w.uri, w.alias,
       CASE WHEN w.asset_id IS NULL THEN 0 WHEN d.events_per_run IS NULL THEN 1 ELSE (
           SELECT count(*) FROM (
               SELECT 1 FROM queued_asset_event c {HINT}
               WHERE c.dag_id = d.dag_id AND c.asset_id = w.asset_id AND c.run_pk IS NULL
               ORDER BY c.asset_event_id LIMIT {bound}) AS counted) END AS queued,
       CASE WHEN d.quiet_period IS NOT NULL AND w.asset_id IS NOT NULL THEN (
           SELECT max(timestamp) FROM (
               SELECT e.timestamp FROM queued_asset_event c {HINT}
               JOIN asset_event e ON e.id = c.asset_event_id
               WHERE c.dag_id = d.dag_id AND c.asset_id = w.asset_id AND c.run_pk IS NULL
               ORDER BY c.asset_event_id DESC LIMIT {NEWEST}) AS newest
           WHERE timestamp <= {SOON}) END AS newest_event
FROM dag d
LEFT JOIN (
    SELECT t.dag_id, t.asset_id, a.name, a.uri, t.alias
    FROM (
        SELECT s.dag_id, s.asset_id, NULL AS alias FROM dag_schedule_asset s WHERE s.dag_id {IN_DAGS}
        UNION ALL
        SELECT l.dag_id, m.asset_id, n.name FROM dag_schedule_alias l
        JOIN asset_alias n ON n.id = l.alias_id
        JOIN asset_alias_member m ON m.alias_id = l.alias_id
        WHERE l.dag_id {IN_DAGS}
    ) t JOIN asset a ON a.id = t.asset_id
    WHERE (SELECT 1 FROM queued_asset_event q {HINT}
           WHERE q.dag_id = t.dag_id AND q.asset_id = t.asset_id AND q.run_pk IS NULL
           ORDER BY q.asset_event_id LIMIT 1) IS NOT NULL
) w ON w.dag_id = d.dag_id
WHERE d.dag_id {IN_DAGS}
ORDER BY d.dag_id, w.asset_id
""",
    HINT=HINT,
    IN_DAGS=in_list("dag_ids", "text"),
    # Read the columns as text. Then `schedule_from_text` decodes equal schedules only once, and `DagRow.params` decodes
    # the parameters only when they are needed.
    SCHEDULE=("d.schedule", "d.schedule::text AS schedule"),
    PARAMS=("d.params", "d.params::text AS params"),
    # The time when this statement began. In `lock_and_read`, this is after the lock was granted.
    NOW=(":now", "statement_timestamp()"),
    SOON=(":soon", _SOON),
    VERSION=("NULL", "d.xmin::text"),
    LAST=(
        "json_array(r.run_after, r.data_interval_start, r.data_interval_end)",
        "ARRAY[r.run_after, r.data_interval_start, r.data_interval_end]",
    ),
    MADE=(
        "json_group_array(json_array(m.data_interval_start, m.data_interval_end))",
        "array_agg(ARRAY[m.data_interval_start, m.data_interval_end])",
    ),
    # SINCE is the logical date of the run in `last_automated`. The timetable creates no run for an
    # interval that ended before SINCE. So `covered_intervals` needs only intervals that end later.
    # EARLIEST is the earlier of SINCE and SOON. A run whose interval ends after SINCE has a
    # `run_after` beyond EARLIEST. So the query reads only this range of the index on `run_after`.
    EARLIEST=(
        f"min({_SINCE.format(soon=':soon', never=repr(''))}, :soon)",
        f"least({_SINCE.format(soon=_SOON, never=repr('-infinity'))}, {_SOON})",
    ),
    SINCE=(_SINCE.format(soon=":soon", never="''"), _SINCE.format(soon=_SOON, never="'-infinity'")),
    # True for a schedule of the kind `OnEither`. No other schedule's JSON begins with this.
    EITHER=("""d.schedule LIKE '{{"either"%'""", """d.schedule::text LIKE '{{"either"%'"""),
    PAST=("json_array(r.run_id, r.state)", "ARRAY[r.run_id, r.state]"),
    NEWEST=(str(NEWEST_EVENTS), str(NEWEST_EVENTS)),
)


@dataclass(frozen=True, slots=True)
class ReadDags:
    """A step: read what the scheduler needs to know about these DAGs. `dag_rows` parses its rows.

    Args:
        bound: Counting of an asset's queued events stops at this number.
    """

    dag_ids: Sequence[str]
    bound: int

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        here = now()
        values = {"now": sqlite_instant(here), "soon": sqlite_instant(here + CLOCK_STEP)}
        return self._bound(**values).on_sqlite(connection, now)

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return self._bound().on_postgres()

    def _bound(self, **values: Any) -> BoundStatement:
        return _SNAPSHOT(dag_ids=list(self.dag_ids), bound=self.bound, **values)


class DagRow(NamedTuple):
    """A DAG, and an asset with queued events that the DAG's condition names, directly or through an alias.

    A DAG has a row for each of these assets. An asset that the condition names in several ways has several rows, for
    example one by name and one by an alias. If there are no such assets, the DAG has one row, which names no asset. The
    rows of a DAG are adjacent.
    """

    dag_id: str
    schedule_json: str | None
    """The stored text. `schedule_from_text` parses it, and remembers the result for equal texts."""
    params_json: str
    max_active_runs: int
    events_per_run: int | None
    is_paused: bool
    is_stale: bool
    start_date: datetime | None
    end_date: datetime | None
    catchup: bool
    min_run_gap: float | None
    quiet_period: float | None
    depends_on_past: bool
    next_run_after: datetime
    next_interval_start: datetime | None
    next_interval_end: datetime | None
    last_run_at: datetime | None
    now: datetime
    version: str | None
    """The version of the DAG's row (PostgreSQL's `xmin`), to detect a later change of the row. None on SQLite."""
    active_runs: int
    last_automated: tuple[datetime, datetime, datetime] | None
    """`run_after` and the data interval of the last run that was created for the DAG's timetable."""
    covered_intervals: tuple[tuple[datetime, datetime], ...]
    """Data intervals for which the timetable must not create a second run.

    A backfill's run or an event-driven run covers each of these intervals already. `last_automated` may miss an
    event-driven run, namely one that lies in the future because the clock was set back. Intervals that ended before the
    run in `last_automated` are left out.
    """
    last_run: tuple[str, str] | None
    """The id and state of the newest run outside backfills, or None if there is none or `depends_on_past` is false."""
    last_kind: str | None
    """The type of the newest timed or event-driven run, or None if there is none or the schedule is not `OnEither`."""
    asset_id: int | None
    name: str
    uri: str
    alias: str | None
    queued: int
    """The number of the asset's queued events, counted up to `bound`. 1 if the DAG has no `events_per_run`."""
    newest_event: datetime | None
    """The instant of the asset's newest queued event, see `NEWEST_EVENTS`. None if the DAG has no `quiet_period`."""

    @property
    def is_partitioned(self) -> bool:
        """True if the DAG is scheduled by partition keys. The JSON of a schedule begins with the schedule's kind."""
        return self.schedule_json is not None and self.schedule_json.startswith('{"partitioned"')

    @property
    def params(self) -> Mapping[str, Any]:
        params: Mapping[str, Any] = json_from(self.params_json)
        return params


def read_dags(dag_ids: Sequence[str], *, bound: int) -> Script[list[DagRow]]:
    """Return what the scheduler needs to know about these DAGs, without a lock."""
    return dag_rows((yield ReadDags(dag_ids, bound)))


def dag_rows(rows: Sequence[Row]) -> list[DagRow]:
    """Return the parsed rows of the step `ReadDags`."""
    return [_dag_row(*row) for row in rows]


def _dag_row(
    dag_id: str, schedule: str | None, params: str, most: int, each: int | None, *others: Any
) -> DagRow:
    paused, stale, start, end, catchup, gap, quiet, on_past, *others = others  # type: ignore[assignment]
    next_at, next_start, next_end, last_at, now, version, active, last, *others = others  # type: ignore[assignment]
    covered, past, last_kind, asset_id, name, uri, alias, queued, newest = others
    return DagRow(
        dag_id,
        schedule,
        params,
        most,
        each,
        bool(paused),
        bool(stale),
        instant_from(start),
        instant_from(end),
        bool(catchup),
        gap,
        quiet,
        bool(on_past),
        _present(next_at),
        instant_from(next_start),
        instant_from(next_end),
        instant_from(last_at),
        _present(now),
        version,
        active,
        None if last is None else tuple(map(_present, json_from(last))),  # type: ignore[arg-type]
        tuple((_present(start), _present(end)) for start, end in json_from(covered) or ()),
        None if past is None else tuple(json_from(past)),
        last_kind,
        asset_id,
        name,
        uri,
        alias,
        queued,
        instant_from(newest),
    )


def _present(value: str | datetime) -> datetime:
    instant = instant_from(value)
    assert instant is not None
    return instant
