"""Steps that change the attempts of runs and their launches. `triggerer.store.runs.attempts.claims` inserts attempts.

A launch is something that an attempt started outside its process, such as a Spark Connect session. A launch without
`ended_at` is open, and may still write data. So while an earlier attempt has an open launch, later attempts do not
execute the user's code.

An executor's report about an attempt is stored only while the run's row shows this executor and the attempt's epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunOrder
from triggerer.domain.launches import CONNECT, Launch
from triggerer.store.database.script import Script
from triggerer.store.database.statement import (
    BoundStatement,
    ParameterRows,
    Statement,
    in_list,
    parameter_rows,
)
from triggerer.store.database.two_statements import TwoStatements

_FIRST_DELAY: Final = timedelta(seconds=5)
_LONGEST_DELAY: Final = timedelta(seconds=60)


def begin_run(*, executor: str, run_pk: int, epoch: int) -> TwoStatements:
    """A step: store that a worker starts an attempt now. It returns one row if this executor still has the run.

    If the executor dies later, the stored time tells `recover_orphans` that the attempt had started. A run's first
    attempt needs no such step, because its claim already stores the time. This saves a transaction.
    """
    values = {"executor": executor, "run_pk": run_pk, "epoch": epoch, "now": datetime.now(UTC)}
    return TwoStatements(_BEGIN, _LAUNCHING, _BEGIN_AND_LAUNCHING, values)


def save_launches(
    *, executor: str, news: Iterable[tuple[RunOrder, Launch]]
) -> BoundStatement | None:
    """A step: store the latest states of launches. It returns a row for each stored launch.

    A launch that has ended does not change. If an attempt reports that a launch of an earlier attempt is running, the
    launch belongs to the reporting attempt from now on.

    Args:
        news: States of launches, earliest report first, each with the `RunOrder` of the attempt that reports it.
    Returns:
        None if `news` is empty.
    """
    latest: dict[tuple[int, str], tuple[RunOrder, Launch]] = {}
    for order, launch in news:
        key = (order.run_pk, launch.tag)
        if key in latest:
            launch = _later(latest[key][1], launch)
        latest[key] = (order, launch)
    if not latest:
        return None
    rows = [_launch_row(order, launch) for order, launch in latest.values()]
    run_pks = sorted({order.run_pk for order, _ in latest.values()})
    return _SAVE_LAUNCHES(executor=executor, rows=ParameterRows(rows), run_pks=run_pks)


def settle_attempts(run_pks: Sequence[int]) -> BoundStatement:
    """A step: mark the unknown attempts of these runs as killed or lost, if all their launches have ended."""
    return _SETTLE(run_pks=sorted(set(run_pks)), now=datetime.now(UTC))


def leave_attempts(
    epochs: Mapping[int, int], state: AttemptState, reasons: Mapping[int, str]
) -> Script[None]:
    """End attempts whose process is gone. An attempt with an open launch becomes `unknown` instead.

    An attempt that uses a Spark Connect server may have opened a session there without reporting it. So if no launch
    with the attempt's tag is stored, an open launch is stored for this session.

    Args:
        epochs: The epoch of each attempt, by the run's primary key.
        state: The final state of attempts without an open launch.
        reasons: Why the process is gone, by the run's primary key.
    """
    if not epochs:
        return
    now = datetime.now(UTC)
    rows = ParameterRows([(pk, epoch, reasons[pk]) for pk, epoch in epochs.items()])
    yield _IMPLY_SESSIONS(rows=rows, now=now)
    yield _LOSE_LAUNCHES(rows=rows)
    yield _LEAVE(rows=rows, now=now, state=str(state))


def block_attempt(*, executor: str, order: RunOrder, reason: str) -> TwoStatements:
    """A step: queue a run again, because an earlier attempt may still be at work, and hold the run for a while.

    The attempt of `order` does not count towards `MAX_ATTEMPTS`, and its row is deleted. The hold lasts half as long as
    the earlier attempt has been unknown, but at least 5 and at most 60 seconds. If no launch is open any longer, there
    is no hold.

    The step returns one row. If another attempt has the run, or the run must be cancelled, the step changes nothing and
    returns no row.
    """
    now = datetime.now(UTC)
    since = min((one.unknown_since for one in order.former if one.unknown_since), default=now)
    delay = min(max((now - since) / 2, _FIRST_DELAY), _LONGEST_DELAY)
    values = {
        "executor": executor,
        "run_pk": order.run_pk,
        "epoch": order.epoch,
        "reason": reason,
        "since": since,
        "until": now + delay,
    }
    return TwoStatements(_BLOCK, _FORGET, _BLOCK_AND_FORGET, values)


def close_launches(
    run_pk: int, state: AttemptState, reason: str, *, before_epoch: int
) -> Script[set[int]]:
    """End a run's open launches and unknown attempts with epochs below `before_epoch`.

    Args:
        state: The final state of the launches and attempts.
        reason: Why they are in this state, as text for people to read.
    Returns:
        The epochs of the attempts that were ended, or whose launches were ended.
    """
    values = {
        "run_pk": run_pk,
        "state": str(state),
        "reason": reason,
        "before": before_epoch,
        "now": datetime.now(UTC),
    }
    closed = yield _CLOSE_LAUNCHES(**values)
    resolved = yield _RESOLVE(**values)
    return {epoch for (epoch,) in (*closed, *resolved)}


def _later(one: Launch, other: Launch) -> Launch:
    if one.state.has_ended:
        return one
    return dataclasses.replace(
        other,
        external_id=other.external_id or one.external_id,
        link=other.link or one.link,
        place=other.place or one.place,
    )


def _launch_row(order: RunOrder, launch: Launch) -> tuple[Any, ...]:
    return (
        order.run_pk,
        launch.tag,
        order.epoch,
        launch.task_id,
        launch.launcher,
        launch.place,
        launch.external_id,
        launch.link,
        str(launch.state),
        launch.reason,
        launch.at,
        launch.at if launch.state.has_ended else None,
    )


_OURS: Final = "id = {run_pk} AND executor = {executor} AND epoch = {epoch} AND state = 'running'"
_OF_EPOCH: Final = "run_pk = {run_pk} AND epoch = {epoch}"
_OPEN: Final = "SELECT 1 FROM run_launch l WHERE l.run_pk = {OF}.run_pk AND l.epoch = {OF}.epoch AND l.ended_at IS NULL"

_BEGIN_TEXT: Final = f"""
UPDATE dag_run SET started_at = {{NOW}}, first_started_at = COALESCE(first_started_at, {{NOW}})
WHERE {_OURS}
RETURNING id
"""
_LAUNCHING_TEXT: Final = f"""
UPDATE run_attempt SET state = '{AttemptState.LAUNCHING}', launched_at = {{NOW}}
WHERE {_OF_EPOCH} AND state = '{AttemptState.INTENDED}'
"""
_NOW: Final = ("{now}", "{now}::timestamptz")
_BEGIN: Final = Statement(_BEGIN_TEXT, NOW=_NOW)
_LAUNCHING: Final = Statement(_LAUNCHING_TEXT, NOW=_NOW)
_BEGIN_AND_LAUNCHING: Final = Statement(
    f"WITH begun AS ({_BEGIN_TEXT}), launching AS ({_LAUNCHING_TEXT} AND run_pk IN (SELECT id FROM begun))"
    " SELECT id FROM begun",
    NOW=_NOW,
)

_BLOCK_TEXT: Final = f"""
UPDATE dag_run SET state = 'queued', attempt = attempt - 1, started_at = NULL,
    held_until = CASE WHEN EXISTS (
        SELECT 1 FROM run_launch l WHERE l.run_pk = dag_run.id AND l.ended_at IS NULL) THEN {{UNTIL}} END,
    waiting_for = {{reason}}, waiting_since = {{since}}
WHERE {_OURS} AND NOT cancel_requested
RETURNING id
"""
_FORGET_TEXT: Final = f"DELETE FROM run_attempt WHERE {_OF_EPOCH}"
_UNTIL: Final = ("{until}", "{until}::timestamptz")
_BLOCK: Final = Statement(_BLOCK_TEXT, UNTIL=_UNTIL)
_FORGET: Final = Statement(_FORGET_TEXT)
_BLOCK_AND_FORGET: Final = Statement(
    f"WITH blocked AS ({_BLOCK_TEXT}), forgotten AS ({_FORGET_TEXT} AND run_pk IN (SELECT id FROM blocked))"
    " SELECT id FROM blocked",
    UNTIL=_UNTIL,
)

_LAUNCHES: Final = parameter_rows(
    run_pk="bigint",
    tag="text",
    epoch="int",
    task_id="text",
    launcher="text",
    place="text",
    external_id="text",
    link="text",
    state="text",
    reason="text",
    seen_at="timestamptz",
    ended_at="timestamptz",
)
# A launch is inserted only if the executor still has the run. On PostgreSQL the run's row is locked, so that no other
# executor claims the run between the check and the insert.
_SAVE_LAUNCHES: Final = Statement(
    """
INSERT INTO run_launch (run_pk, tag, epoch, task_id, launcher, place, external_id, link, state, reason, seen_at,
                        ended_at)
SELECT g.run_pk, g.tag, g.epoch, g.task_id, g.launcher, g.place, g.external_id, g.link, g.state, g.reason, g.seen_at,
       g.ended_at
FROM {GIVEN} AS g JOIN (
    SELECT id, epoch FROM dag_run WHERE id {IN_RUNS} AND executor = {executor} AND state = 'running' {LOCK}
) AS r ON r.id = g.run_pk AND r.epoch = g.epoch
WHERE true
ON CONFLICT (run_pk, tag) DO UPDATE SET
    epoch = CASE WHEN excluded.state = 'running' THEN excluded.epoch ELSE run_launch.epoch END,
    place = COALESCE(excluded.place, run_launch.place),
    external_id = COALESCE(excluded.external_id, run_launch.external_id),
    link = COALESCE(excluded.link, run_launch.link),
    state = excluded.state, reason = excluded.reason, seen_at = excluded.seen_at, ended_at = excluded.ended_at
WHERE run_launch.ended_at IS NULL
RETURNING run_pk
""",
    GIVEN=_LAUNCHES,
    IN_RUNS=in_list("run_pks", "bigint"),
    LOCK=("", "ORDER BY id FOR UPDATE"),
)
_SETTLE: Final = Statement(
    f"""
UPDATE run_attempt SET ended_at = {{NOW}}, unknown_since = NULL, state = CASE WHEN EXISTS (
        SELECT 1 FROM run_launch l WHERE l.run_pk = run_attempt.run_pk AND l.epoch = run_attempt.epoch
          AND l.state = '{AttemptState.KILLED}') THEN '{AttemptState.KILLED}' ELSE '{AttemptState.LOST}' END
WHERE run_pk {{IN_RUNS}} AND state = '{AttemptState.UNKNOWN}'
  AND NOT EXISTS ({_OPEN.replace("{OF}", "run_attempt")})
""",
    IN_RUNS=in_list("run_pks", "bigint"),
    NOW=_NOW,
)

_LEFT: Final = parameter_rows(run_pk="bigint", epoch="int", reason="text")
_IMPLY_SESSIONS: Final = Statement(
    f"""
INSERT INTO run_launch (run_pk, tag, epoch, launcher, place, state, reason, seen_at)
SELECT a.run_pk, a.tag, a.epoch, a.launcher, a.place, '{AttemptState.UNKNOWN}', g.reason, {{NOW}}
FROM {{GIVEN}} AS g JOIN run_attempt a ON a.run_pk = g.run_pk AND a.epoch = g.epoch
WHERE a.launcher = '{CONNECT}'
ON CONFLICT (run_pk, tag) DO NOTHING
""",
    GIVEN=_LEFT,
    NOW=_NOW,
)
_LOSE_LAUNCHES: Final = Statement(
    f"""
UPDATE run_launch SET state = '{AttemptState.UNKNOWN}', reason = g.reason FROM {{GIVEN}} AS g
WHERE run_launch.run_pk = g.run_pk AND run_launch.epoch = g.epoch AND run_launch.ended_at IS NULL
""",
    GIVEN=_LEFT,
)
_HAS_OPEN: Final = f"EXISTS ({_OPEN.replace('{OF}', 'g')})"
_LEAVE: Final = Statement(
    f"""
UPDATE run_attempt SET reason = g.reason,
    state = CASE WHEN {_HAS_OPEN} THEN '{AttemptState.UNKNOWN}' ELSE {{STATE}} END,
    ended_at = CASE WHEN NOT {_HAS_OPEN} THEN {{NOW}} END,
    unknown_since = CASE WHEN {_HAS_OPEN} THEN {{NOW}} END
FROM {{GIVEN}} AS g
WHERE run_attempt.run_pk = g.run_pk AND run_attempt.epoch = g.epoch AND run_attempt.ended_at IS NULL
""",
    GIVEN=_LEFT,
    NOW=_NOW,
    STATE=("{state}", "{state}::text"),
)
_CLOSE_LAUNCHES: Final = Statement(
    """
UPDATE run_launch SET state = {state}, reason = {reason}, ended_at = {NOW}
WHERE run_pk = {run_pk} AND ended_at IS NULL AND epoch < {before}
RETURNING epoch
""",
    NOW=_NOW,
)
_RESOLVE: Final = Statement(
    f"""
UPDATE run_attempt SET state = {{state}}, reason = {{reason}}, ended_at = {{NOW}}, unknown_since = NULL
WHERE run_pk = {{run_pk}} AND state = '{AttemptState.UNKNOWN}' AND epoch < {{before}}
RETURNING epoch
""",
    NOW=_NOW,
)
