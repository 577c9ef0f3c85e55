"""Steps that claim queued runs for an executor. A claim also inserts the row of the new attempt."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import Repeat, RunOrder
from triggerer.domain.launches import CONNECT, WORKER, FormerLaunch, attempt_tag, tag_of_instance
from triggerer.domain.run_logs import log_path
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row
from triggerer.store.database.statement import Statement, in_list, instant_from, json_from


@dataclass(frozen=True, slots=True)
class ClaimRuns:
    """A step: set queued runs to running for this executor alone. `claimed_runs` makes orders from its rows.

    These runs are skipped: held runs, runs that a user asked to cancel, and runs that another executor is claiming at
    this moment. The claim stores when a run's first attempt started. For later attempts,
    `triggerer.store.runs.attempts.steps.begin_run` stores the start.
    """

    executor: str
    log_home: str
    connect: str | None
    """The address of the Spark Connect server where runs open sessions. None: runs open no sessions on a server."""
    limit: int | None = None
    """The most runs to claim; used if `run_pks` is None."""
    run_pks: Sequence[int] | None = None
    """The runs to claim, except runs that can no longer be claimed."""

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        statement = _SQLITE_CLAIM if self.run_pks is None else _SQLITE_CLAIM_THESE
        values = self._values()
        rows = statement(**values).on_sqlite(connection, now)
        if rows:
            claimed = [row[0] for row in rows]
            _SQLITE_INTENT(**{**values, "run_pks": claimed}).on_sqlite(connection, now)
        return rows

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        statement = _POSTGRES_CLAIM if self.run_pks is None else _POSTGRES_CLAIM_THESE
        return statement(**self._values()).on_postgres()

    def _values(self) -> dict[str, Any]:
        chosen = {"limit": self.limit} if self.run_pks is None else {"run_pks": list(self.run_pks)}
        return {
            "executor": self.executor,
            "instance": tag_of_instance(self.executor),
            "connect": self.connect,
            "log_home": self.log_home,
            "now": datetime.now(UTC),
            **chosen,
        }


def claim_runs(
    *, executor: str, limit: int, log_home: str, connect: str | None = None
) -> ClaimRuns:
    """A step: claim up to `limit` queued runs, see `ClaimRuns`.

    Runs with a higher priority come first, then older runs. Runs with pools are left to
    `triggerer.store.runs.pooled_claims`.
    """
    return ClaimRuns(executor, log_home, connect, limit=limit)


def claim_these(
    *, executor: str, run_pks: Sequence[int], log_home: str, connect: str | None = None
) -> ClaimRuns:
    """A step: claim these runs, except runs that can no longer be claimed. See `ClaimRuns`."""
    return ClaimRuns(executor, log_home, connect, run_pks=run_pks)


def claimed_runs(
    rows: Sequence[Row], *, executor: str, log_home: str, connect: str | None = None
) -> list[RunOrder]:
    """Return orders for the runs that `ClaimRuns` claimed, in the order of execution.

    Args:
        rows: The rows that the step returned. The other arguments must equal the step's arguments.
    """
    ordered = sorted(rows, key=lambda row: (-row[-1], row[0]))
    return [_order(row[:-1], executor, log_home, connect) for row in ordered]


def needs_spark(tasks: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of a DAG's stored tasks uses `spark`."""
    return any(task.get("needs_spark") for task in tasks)


def _order(row: Row, executor: str, log_home: str, connect: str | None) -> RunOrder:
    run_pk, dag_id, run_id, run_type, attempt, epoch, queued_at, run_after, *others = row
    logical_date, start, end, params, partition_key, again, path, tasks, callbacks, former = others
    has_spark = needs_spark(json_from(tasks))
    repeat = Repeat.from_json(json_from(again))
    return RunOrder(
        dag_id=dag_id,
        run_id=run_id,
        run_type=run_type,
        attempt=attempt,
        queued_at=_present(queued_at),
        run_after=_present(run_after),
        logical_date=instant_from(logical_date),
        data_interval_start=instant_from(start),
        data_interval_end=instant_from(end),
        params=json_from(params),
        partition_key=partition_key,
        run_pk=run_pk,
        path=path,
        needs_spark=has_spark,
        log_path=log_path(log_home, dag_id, run_id),
        repeat=repeat,
        callbacks=callbacks,
        epoch=epoch,
        tag=attempt_tag(executor, run_pk, attempt, epoch),
        connect=connect if has_spark else None,
        former=tuple(_former(launch, repeat) for launch in json_from(former) or ()),
    )


def _former(row: Sequence[Any], repeat: Repeat) -> FormerLaunch:
    tag, launcher, attempt, state, task_id, place, external_id, link, since, epoch = row
    return FormerLaunch(
        tag=tag,
        launcher=launcher,
        attempt=attempt,
        state=AttemptState(state),
        task_id=task_id,
        place=place,
        external_id=external_id,
        link=link,
        unknown_since=_instant_in_json(since),
        may_continue=epoch > repeat.after_epoch,
    )


def _instant_in_json(text: str | None) -> datetime | None:
    """Return an instant from JSON that the database made. SQLite writes no time zone, PostgreSQL writes one."""
    if text is None:
        return None
    instant = datetime.fromisoformat(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _present(value: str | datetime) -> datetime:
    instant = instant_from(value)
    assert instant is not None
    return instant


# `_PICKED` chooses the runs to claim. On SQLite, HINT names an index, because the planner ignores
# the LIMIT and would otherwise read all runs. On PostgreSQL, `_POSTGRES_CLAIM` puts `_PICKED` into
# ARRAY(), so that the server executes `_PICKED` only once.
_CLAIMABLE: Final = "state = 'queued' AND held_until IS NULL AND NOT cancel_requested"
_PICKED: Final = f"""
SELECT r.id FROM dag_run r {{HINT}} WHERE {_CLAIMABLE} AND r.pools IS NULL
ORDER BY r.priority DESC, r.id
LIMIT {{limit}} {{LOCK}}"""
# The column `former` contains the open launches of a run's earlier attempts. The first claim (epoch 1) has none.
_CLAIMED: Final = """
UPDATE dag_run SET state = 'running', executor = {executor}, attempt = attempt + 1, epoch = epoch + 1,
       started_at = CASE WHEN attempt = 0 THEN {NOW} END,
       first_started_at = COALESCE(first_started_at, CASE WHEN attempt = 0 THEN {NOW} END),
       log_home = {log_home}, error = NULL, exit_code = NULL, waiting_for = NULL, waiting_since = NULL,
       progress = NULL
WHERE {PICKED}
RETURNING id, dag_id, run_id, run_type, attempt, epoch, queued_at, run_after, logical_date,
          data_interval_start, data_interval_end, params, partition_key, again,
          (SELECT d.path FROM dag d WHERE d.dag_id = dag_run.dag_id) AS path,
          (SELECT d.tasks FROM dag d WHERE d.dag_id = dag_run.dag_id) AS tasks,
          (SELECT d.callbacks FROM dag d WHERE d.dag_id = dag_run.dag_id) AS callbacks,
          CASE WHEN epoch > 1 THEN (
              SELECT {ROWS}({ROW}(l.tag, l.launcher, a.number, l.state, l.task_id, l.place, l.external_id, l.link,
                                  a.unknown_since, l.epoch))
              FROM run_launch l JOIN run_attempt a ON a.run_pk = l.run_pk AND a.epoch = l.epoch
              WHERE l.run_pk = dag_run.id AND l.ended_at IS NULL) END AS former,
          priority
"""
_INTENT: Final = f"""
INSERT INTO run_attempt (run_pk, epoch, number, executor, launcher, place, tag, state, intent_at)
SELECT id, epoch, attempt, {{executor}}, launcher, CASE WHEN launcher = '{CONNECT}' THEN {{CONNECT}} END,
       'triggerer-' || {{INSTANCE}} || '-' || id || '-' || attempt || '-' || epoch,
       '{AttemptState.INTENDED}', {{NOW}}
FROM (
    SELECT id, epoch, attempt, CASE WHEN {{CONNECT}} IS NOT NULL AND EXISTS (
        SELECT 1 FROM dag d, {{TASKS}} WHERE d.dag_id = {{CLAIMS}}.dag_id AND {{NEEDS_SPARK}}
    ) THEN '{CONNECT}' ELSE '{WORKER}' END AS launcher
    FROM {{CLAIMS}} {{CHOSEN}}
) AS claim
"""
_NOW: Final = ("{now}", "{now}::timestamptz")
_ON_SQLITE: Final = {
    "ROWS": "json_group_array",
    "ROW": "json_array",
    "NOW": "{now}",
    "HINT": "INDEXED BY ix_dag_run_claimable",
    "LOCK": "",
}
_ON_POSTGRES: Final = {
    "ROWS": "json_agg",
    "ROW": "json_build_array",
    "NOW": "{now}::timestamptz",
    "HINT": "",
    "LOCK": "FOR UPDATE OF r SKIP LOCKED",
}


def _filled(template: str, texts: Mapping[str, str]) -> str:
    for name, written in texts.items():
        template = template.replace(f"{{{name}}}", written)
    return template


def _on_sqlite(picked: str) -> Statement:
    return Statement(_filled(_CLAIMED, {"PICKED": picked, **_ON_SQLITE}))


def _on_postgres(picked: str) -> Statement:
    claimed = _filled(_CLAIMED, {"PICKED": picked, **_ON_POSTGRES})
    intent = _filled(
        _INTENT,
        {
            "CONNECT": "{connect}::text",
            "INSTANCE": "{instance}::text",
            "NOW": "{now}::timestamptz",
            "TASKS": "json_array_elements(d.tasks) t",
            "NEEDS_SPARK": "(t ->> 'needs_spark')::boolean",
            "CLAIMS": "claimed",
            "CHOSEN": "",
        },
    )
    return Statement(f"WITH claimed AS ({claimed}), intended AS ({intent}) SELECT * FROM claimed")


_SQLITE_CLAIM: Final = _on_sqlite(f"id IN ({_PICKED})")
_SQLITE_CLAIM_THESE: Final = _on_sqlite(
    f"id IN (SELECT value FROM json_each({{run_pks}})) AND {_CLAIMABLE}"
)
_SQLITE_INTENT: Final = Statement(
    _filled(
        _INTENT,
        {
            "CONNECT": "{connect}",
            "INSTANCE": "{instance}",
            "NOW": "{now}",
            "TASKS": "json_each(d.tasks) t",
            "NEEDS_SPARK": "json_extract(t.value, '$.needs_spark')",
            "CLAIMS": "dag_run",
            "CHOSEN": "WHERE id {IN_RUNS}",
        },
    ),
    IN_RUNS=in_list("run_pks", "bigint"),
)
_POSTGRES_CLAIM: Final = _on_postgres(f"id = ANY(ARRAY({_PICKED}))")
_POSTGRES_CLAIM_THESE: Final = _on_postgres(f"id = ANY({{run_pks}}::bigint[]) AND {_CLAIMABLE}")
