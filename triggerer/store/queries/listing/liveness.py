"""Which instances have missed a heartbeat: what the store shows of them may be out of date."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.instance_ids import is_known_dead
from triggerer.store.engine.database import database_now
from triggerer.store.models import Instance

_LATE: Final = {"triggerer": 0.35, "executor": 0.45}
"""Fractions of a lease. A heartbeat comes after a quarter of it, or after a third for an executor."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """What is known of an instance that owns something. All instants are the database's."""

    seen_at: datetime | None
    """Its last heartbeat; None: its registration is gone."""
    lease_ends_at: datetime | None
    """When others may take over what it owns; None: they may do so now."""
    is_silent: bool
    """A heartbeat is missed, or its process is gone from this machine."""

    @property
    def is_over(self) -> bool:
        return self.lease_ends_at is None


GONE: Final = Liveness(None, None, is_silent=True)


async def liveness_of(
    session: AsyncSession, instance_ids: Collection[str | None]
) -> dict[str, Liveness]:
    """Return what is known of these instances, by id; None among them stands for no instance."""
    wanted = {one for one in instance_ids if one is not None}
    if not wanted:
        return {}
    now = await database_now(session)
    # A few rows: one for each living process, and for those that died within a day.
    rows = {row.id: row for row in await session.scalars(select(Instance)) if row.id in wanted}
    return {one: GONE if one not in rows else _judge(rows[one], now) for one in wanted}


def _judge(row: Instance, now: datetime) -> Liveness:
    if row.expires_at <= now:
        return Liveness(row.heartbeat_at, None, is_silent=True)
    is_late = False
    if row.heartbeat_at is not None:
        lease = row.expires_at - row.heartbeat_at
        is_late = now - row.heartbeat_at > lease * _LATE.get(row.kind, 0.5)
    return Liveness(row.heartbeat_at, row.expires_at, is_late or is_known_dead(row.id))
