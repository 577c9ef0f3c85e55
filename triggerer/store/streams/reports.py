"""Stores and reads what instances report about their live state, and asks instances to report more often."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.live_state import StreamLive, stream_from_json
from triggerer.store.database.transactions import database_now, insert_into
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.schema.models import InstanceReport

LOOKED_FOR: Final = timedelta(seconds=60)
"""How long an instance reports more often after a user has read reports."""
_RENEW_AFTER: Final = LOOKED_FOR / 3
Sessions = Callable[[], AbstractAsyncContextManager[AsyncSession]]


@dataclass(frozen=True, slots=True)
class Report:
    """The last report of an instance."""

    reported_at: datetime
    streams: Mapping[str, StreamLive]
    """The reported streams, by the digest of the stream key."""


async def write_report(
    session: AsyncSession, instance_id: str, streams: Sequence[StreamLive]
) -> bool:
    """Replace the report of an instance. Return whether a user has read reports in the last minute."""
    now = await database_now(session)
    report = {"streams": [asdict(stream) for stream in streams]}
    statement = insert_into(session, InstanceReport).values(
        instance_id=instance_id, version=1, report=report, reported_at=now
    )
    looked_at = await session.scalar(
        statement.on_conflict_do_update(
            index_elements=[InstanceReport.instance_id],
            set_={
                "version": InstanceReport.version + 1,
                "report": report,
                "reported_at": now,
            },
        ).returning(InstanceReport.looked_at)
    )
    return looked_at is not None and looked_at > now - LOOKED_FOR


async def load_reports(session: AsyncSession, instance_ids: Collection[str]) -> dict[str, Report]:
    """Return the last report of each of these instances, by instance id. Instances without a report are left out."""
    query = select(InstanceReport).where(InstanceReport.instance_id.in_(sorted(instance_ids)))
    return {
        row.instance_id: Report(
            row.reported_at,
            {one["stream_id"]: stream_from_json(one) for one in row.report.get("streams", ())},
        )
        for row in await session.scalars(query)
    }


async def ask_for_reports(reading: Sessions, changing: Sessions) -> None:
    """Make all instances report often for the next minute, because a user reads the reports now.

    If the instances were asked less than 20 seconds ago, this costs only a short read transaction.

    Args:
        reading: `Database.reading`, or a function that calls it with a time limit.
        changing: `Database.transaction`, or a function that calls it with a time limit.
    """
    async with reading() as session:
        outdated = await database_now(session) - _RENEW_AFTER
        is_outdated = or_(InstanceReport.looked_at.is_(None), InstanceReport.looked_at <= outdated)
        if not await session.scalar(select(func.count()).where(is_outdated)):
            return
    async with changing() as session:
        now = await database_now(session)
        await session.execute(update(InstanceReport).where(is_outdated).values(looked_at=now))
        announce(session, Signal.REPORTS_WANTED)
