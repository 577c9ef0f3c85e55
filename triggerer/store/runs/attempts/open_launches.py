"""Finds launches that may still be at work although their run has ended, and stores how they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import FormerLaunch, Launch
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, parameter_rows
from triggerer.store.database.transactions import database_now
from triggerer.store.runs.attempts.steps import settle_attempts
from triggerer.store.schema.models import DagRun, Instance, RunAttempt, RunLaunch

_ENDED: Final = text("dag_run.state IN ('success', 'failed', 'cancelled')")


async def open_launches_of_ended_runs(
    session: AsyncSession, *, executor: str, is_alone: bool, limit: int
) -> list[tuple[int, FormerLaunch]]:
    """Return the open launches of ended runs, each with its run's primary key.

    The launch that was seen longest ago comes first. Only the runs of this executor and of dead executors are searched.

    Args:
        is_alone: True if there is no other executor, so that the runs of all executors are searched.
    """
    query = (
        select(RunLaunch, RunAttempt.number, RunAttempt.unknown_since)
        .join(DagRun, DagRun.id == RunLaunch.run_pk)
        .join(
            RunAttempt,
            (RunAttempt.run_pk == RunLaunch.run_pk) & (RunAttempt.epoch == RunLaunch.epoch),
        )
        .where(RunLaunch.ended_at.is_(None), _ENDED)
        .order_by(RunLaunch.seen_at)
        .limit(limit)
    )
    if not is_alone:
        living = select(Instance.id).where(Instance.expires_at > await database_now(session))
        query = query.where(or_(DagRun.executor == executor, DagRun.executor.not_in(living)))
    return [
        (
            row.run_pk,
            FormerLaunch(
                row.tag,
                row.launcher,
                number,
                AttemptState(row.state),
                task_id=row.task_id,
                place=row.place,
                external_id=row.external_id,
                link=row.link,
                unknown_since=unknown_since,
            ),
        )
        for row, number, unknown_since in await session.execute(query)
    ]


def update_launches(launches: Sequence[tuple[int, Launch]]) -> Script[None]:
    """Store the current states of launches whose run has ended, and settle the attempts that were unknown.

    A state is stored even if the run has a later attempt. A launch that has ended does not change.

    The launches and the attempts are changed in one transaction. After a crash between two transactions, an attempt
    could stay unknown for ever, because only runs with open launches are searched.

    Args:
        launches: Each launch with its run's primary key.
    """
    rows: list[tuple[Any, ...]] = [
        (
            run_pk,
            one.tag,
            str(one.state),
            one.reason,
            one.external_id,
            one.link,
            one.at,
            one.at if one.state.has_ended else None,
        )
        for run_pk, one in launches
    ]
    yield _UPDATE(rows=ParameterRows(rows))
    yield settle_attempts([run_pk for run_pk, _ in launches])


_UPDATE: Final = Statement(
    """
UPDATE run_launch SET state = g.state, reason = g.reason, seen_at = g.seen_at, ended_at = g.ended_at,
    external_id = COALESCE(g.external_id, run_launch.external_id), link = COALESCE(g.link, run_launch.link)
FROM {GIVEN} AS g
WHERE run_launch.run_pk = g.run_pk AND run_launch.tag = g.tag AND run_launch.ended_at IS NULL
""",
    GIVEN=parameter_rows(
        run_pk="bigint",
        tag="text",
        state="text",
        reason="text",
        external_id="text",
        link="text",
        seen_at="timestamptz",
        ended_at="timestamptz",
    ),
)
