"""Finds instances that missed a heartbeat. The stored states of their streams and runs may be outdated."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.processes.instance_ids import is_known_dead
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Instance

_LATE: Final = {"triggerer": 0.35, "executor": 0.45}
"""By kind of instance, the fraction of a lease after which a heartbeat is late.

A triggerer sends a heartbeat after a quarter of its lease, and an executor after a third."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """The signs of life of an instance. All instants are by the database's clock."""

    seen_at: datetime | None
    """The last heartbeat. None: the instance is not registered."""
    lease_ends_at: datetime | None
    """When other instances may take over this instance's streams or runs. None: they may do so now."""
    is_silent: bool
    """True if a heartbeat is late, or if the instance's process no longer exists on this machine."""

    @property
    def is_over(self) -> bool:
        """True if the lease is over, so that other instances may take over."""
        return self.lease_ends_at is None


GONE: Final = Liveness(None, None, is_silent=True)
"""The signs of life of an instance that is not registered."""


async def known_instances(session: AsyncSession) -> dict[str, Liveness]:
    """Return the liveness of each registered instance, by id. A dead instance may stay registered for a day."""
    now = await database_now(session)
    return {row.id: _judge(row, now) for row in await session.scalars(select(Instance))}


def _judge(row: Instance, now: datetime) -> Liveness:
    if row.expires_at <= now:
        return Liveness(row.heartbeat_at, None, is_silent=True)
    is_late = False
    if row.heartbeat_at is not None:
        lease = row.expires_at - row.heartbeat_at
        is_late = now - row.heartbeat_at > lease * _LATE.get(row.kind, 0.5)
    return Liveness(row.heartbeat_at, row.expires_at, is_late or is_known_dead(row.id))


def why_silent(owner: str, known: Liveness, now: datetime) -> str:
    """Return a sentence that says for how long an owner has been silent, and when another instance takes over."""
    silent = (
        "is gone"
        if known.seen_at is None
        else f"was last heard from {_ago(now - known.seen_at)} ago"
    )
    if known.lease_ends_at is None:
        return f"no instance hosts it: its owner {owner} {silent}"
    left = _ago(known.lease_ends_at - now)
    return f"its owner {owner} {silent}; its lease ends in {left}, and then another instance takes over"


def _ago(length: timedelta) -> str:
    seconds = round(max(length.total_seconds(), 0))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
