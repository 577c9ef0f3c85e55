"""Leases: which instances are alive, and which triggerer (an instance that hosts streams) owns which stream.

The lease of a stream is (owner, epoch, expiry). Each claim raises the stream's epoch, so a transaction can tell the
current owner from an earlier one. All instants are by the database's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.processes.instance_ids import release
from triggerer.store.database.transactions import database_now, insert_into
from triggerer.store.schema.migrations import THIS_RELEASE
from triggerer.store.schema.models import Instance, InstanceReport, Stream

LEASE_EXPIRY: Final = timedelta(seconds=15)
HEARTBEAT_INTERVAL: Final = timedelta(seconds=5)
_REMEMBERED: Final = timedelta(days=1)


async def register_instance(
    session: AsyncSession, instance_id: str, *, kind: str, expiry: timedelta = LEASE_EXPIRY
) -> None:
    """Register an instance as alive until `expiry` from now. Later calls for the instance are its heartbeats.

    Rows of instances that expired more than a day ago are deleted.

    Args:
        instance_id: `<host>:<pid>:<random>`, new at every start.
        kind: See `Instance.kind`.
    """
    now = await database_now(session)
    await session.execute(
        insert_into(session, Instance)
        .values(
            id=instance_id,
            kind=kind,
            started_at=now,
            expires_at=now + expiry,
            heartbeat_at=now,
            release=release(),
            revision=THIS_RELEASE.newest,
        )
        .on_conflict_do_update(
            index_elements=[Instance.id], set_={"expires_at": now + expiry, "heartbeat_at": now}
        )
    )
    # SKIP LOCKED skips the rows that another transaction deletes or renews at this moment.
    dead = select(Instance.id).where(Instance.expires_at < now - _REMEMBERED)
    await session.execute(
        delete(Instance).where(Instance.id.in_(dead.with_for_update(skip_locked=True)))
    )
    known = select(Instance.id)
    await session.execute(delete(InstanceReport).where(InstanceReport.instance_id.not_in(known)))


async def deregister_instance(session: AsyncSession, instance_id: str) -> None:
    """Delete the registration of an instance, and free its streams at once."""
    await session.execute(
        update(Stream).where(Stream.owner == instance_id).values(owner=None, expires_at=None)
    )
    await session.execute(delete(InstanceReport).where(InstanceReport.instance_id == instance_id))
    await session.execute(delete(Instance).where(Instance.id == instance_id))


async def live_instances(session: AsyncSession, *, kind: str) -> list[str]:
    """Return the ids of the live instances of this kind, sorted."""
    now = await database_now(session)
    alive = select(Instance.id).where(Instance.kind == kind, Instance.expires_at > now)
    return list(await session.scalars(alive.order_by(Instance.id)))


async def all_live_instances(session: AsyncSession) -> list[str]:
    """Return the ids of all instances whose registration has not expired, sorted. Their processes may have died."""
    alive = Instance.expires_at > await database_now(session)
    return list(await session.scalars(select(Instance.id).where(alive).order_by(Instance.id)))


async def forget_instances(session: AsyncSession) -> None:
    """Free all streams, and delete all registrations.

    A standalone service calls this function when it starts. Otherwise the service would wait until the leases of a
    killed process expire. The service has called `lock_exclusively` before, so all other processes are dead.
    """
    await session.execute(update(Stream).values(owner=None, expires_at=None))
    await session.execute(delete(InstanceReport))
    await session.execute(delete(Instance))


async def evict_others(session: AsyncSession, instance_id: str, *, kind: str) -> None:
    """Free the streams of all other instances, and delete the registrations of the other instances of this kind.

    On SQLite, the triggerer of a standalone service calls this function when it starts. The registrations of the
    service's other parts must stay, so the triggerer does not call `forget_instances`.
    """
    others = select(Instance.id).where(Instance.kind == kind, Instance.id != instance_id)
    await session.execute(
        update(Stream).where(Stream.owner != instance_id).values(owner=None, expires_at=None)
    )
    await session.execute(delete(Instance).where(Instance.id.in_(others)))


def may_open(now: datetime) -> ColumnElement[bool]:
    """Return the condition that the `Stream` may be opened. A new stream stays closed until all DAG files were read."""
    return or_(Stream.closed_until.is_(None), Stream.closed_until <= now)


def is_free(now: datetime) -> ColumnElement[bool]:
    """Return the condition that the `Stream` has no owner, or that its lease has expired."""
    return or_(Stream.owner.is_(None), Stream.expires_at.is_(None), Stream.expires_at <= now)


async def claim_streams(
    session: AsyncSession,
    instance_id: str,
    *,
    limit: int,
    room: int,
    sizes: Mapping[str, int],
    expiry: timedelta = LEASE_EXPIRY,
) -> list[Fence]:
    """Claim up to `limit` streams that are free and may be opened. Return their leases; empty if there are none.

    Streams that another instance is claiming are skipped. The leases hold from the caller's commit on. If the outcome
    of the commit is unknown, `owned_streams` returns the leases that were claimed.

    Args:
        room: The most triggers that the claimed streams may have in total. Streams that do not fit are skipped.
        sizes: The streams that may be claimed: by digest, the number of the stream's triggers.
        expiry: How long the leases hold unless they are extended.
    """
    fitting = [digest for digest, size in sizes.items() if size <= room]
    if limit <= 0 or not fitting:
        return []
    now = await database_now(session)
    free = (
        select(Stream)
        .where(Stream.digest.in_(fitting), is_free(now), may_open(now))
        .order_by(Stream.digest)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    )
    fences = []
    for stream in await session.scalars(free):
        if sizes[stream.digest] > room:
            continue
        room -= sizes[stream.digest]
        stream.owner = instance_id
        stream.epoch += 1
        stream.closed_until = None
        stream.expires_at = now + expiry
        fences.append(Fence(stream.digest, instance_id, stream.epoch))
    await session.flush()
    return fences


async def owned_streams(session: AsyncSession, instance_id: str) -> list[Fence]:
    """Return the leases that the store shows for this instance, whether they have expired or not."""
    owned = select(Stream.digest, Stream.epoch).where(Stream.owner == instance_id)
    return [
        Fence(digest, instance_id, epoch)
        for digest, epoch in await session.execute(owned.order_by(Stream.digest))
    ]


async def extend_leases(
    session: AsyncSession, fences: Iterable[Fence], *, expiry: timedelta = LEASE_EXPIRY
) -> list[Fence]:
    """Extend these leases, and return the leases that were extended. A lease that is not returned is lost.

    An expired lease is extended too, if no other instance has claimed the stream since.
    """
    valid = await _valid(session, fences)
    if valid:
        now = await database_now(session)
        digests = [fence.stream_digest for fence in valid]
        await session.execute(
            update(Stream).where(Stream.digest.in_(digests)).values(expires_at=now + expiry)
        )
    return valid


async def release_streams(session: AsyncSession, fences: Iterable[Fence]) -> None:
    """Release these leases, as far as they still hold. Other instances may claim the streams at once."""
    valid = await _valid(session, fences)
    if valid:
        digests = [fence.stream_digest for fence in valid]
        await session.execute(
            update(Stream).where(Stream.digest.in_(digests)).values(owner=None, expires_at=None)
        )


async def _valid(session: AsyncSession, fences: Iterable[Fence]) -> list[Fence]:
    """Lock the streams whose lease still holds, and return these leases."""
    wanted = list(fences)
    if not wanted:
        return []
    # Compare the epochs in Python. PostgreSQL refuses a condition on thousands of (digest, owner, epoch), because it is
    # nested too deeply.
    shown = (
        select(Stream.digest, Stream.owner, Stream.epoch)
        .where(
            Stream.owner.in_({fence.owner for fence in wanted}),
            Stream.digest.in_([fence.stream_digest for fence in wanted]),
        )
        .order_by(Stream.digest)
        .with_for_update()
    )
    valid = {tuple(row) for row in await session.execute(shown)}
    return [fence for fence in wanted if tuple(fence) in valid]
