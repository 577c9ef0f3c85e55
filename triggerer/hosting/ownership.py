"""The transactions by which an instance owns streams: a heartbeat extends its leases, and claims free streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import anyio
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.events import Fence
from triggerer.domain.watchers.stream_marks import StoredMark
from triggerer.errors import StoreUnavailable
from triggerer.hosting.queries import HostingQueries, LeaseQueries, MarkQueries
from triggerer.hosting.stream_division import StreamDivision, divide
from triggerer.processes.own_lease import OwnLease
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.watchers.hosting import StreamLoad

_log = structlog.get_logger(__name__)

_KIND: Final = "triggerer"

# The following constants are fractions of the lease. They leave time for several heartbeats before a lease expires.
HEARTBEAT_INTERVAL: Final = 1 / 4
OWN_LEASE_MARGIN: Final = 1 / 12
"""The last part of a lease. The owner stops the streams before this part begins.

The margin leaves time for an unfinished advance of the broker, and for clocks that differ in speed.
"""
RETRY_INTERVAL: Final = 1 / 12
"""The interval between a heartbeat that failed and the next try."""
_TIMEOUT: Final = 1 / 3
"""The deadline of a heartbeat. If a heartbeat hangs on a dead connection, there is time for a second heartbeat."""

# Sorts an instance's leases. The second argument says how many triggers each stream has. An instance that must give up
# leases gives up the last ones of the list first.
KeepingOrder = Callable[[Iterable[Fence], Iterable[StreamLoad]], list[Fence]]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The result of a heartbeat."""

    asked_at: float
    """When the heartbeat began, by the clock of the instance's own lease."""
    fences: Sequence[Fence]
    """All leases that the instance has from now on."""
    release: Sequence[str]
    """The digests of the streams that the instance should give up."""
    marks: Mapping[Fence, StoredMark]
    """The marks of the streams, by lease."""


class Ownership:
    """The transactions by which one instance owns streams.

    Args:
        lease: How long an extension holds, by the database's clock.
        own_lease: The instance's own lease. Its clock tells when a heartbeat began.
        capacity: The most triggers that the instance hosts.
    """

    def __init__(
        self,
        database: Database,
        instance_id: str,
        *,
        lease: timedelta,
        own_lease: OwnLease,
        capacity: int,
        leases: LeaseQueries,
        queries: HostingQueries,
        marks: MarkQueries,
    ) -> None:
        self._database = database
        self._instance_id = instance_id
        self._lease = lease
        self._own_lease = own_lease
        self._capacity = capacity
        self._leases = leases
        self._queries = queries
        self._marks = marks
        self._crowded: frozenset[str] = frozenset()

    async def register(self, *, is_alone: bool) -> None:
        """Register this instance as alive, so that it gets a share of the streams.

        Args:
            is_alone: True: no other instance can be alive. Free the streams of all other instances before their leases
                expire.
        Raises:
            StoreError: The instance is not registered.
        """
        async with self._database.transaction() as session:
            if is_alone:
                await self._leases.evict_others(session, self._instance_id, kind=_KIND)
            await self._register(session)

    async def _register(self, session: AsyncSession) -> None:
        await self._leases.register_instance(
            session, self._instance_id, kind=_KIND, expiry=self._lease
        )

    async def beat(self, order: KeepingOrder, in_order: Iterable[Fence] = ()) -> Heartbeat:
        """Extend the leases of this instance, claim free streams, and find out which leases to give up.

        The instance claims streams up to its share (the number of streams divided by the number of instances). Beyond
        its share, the instance claims the streams for which no other instance has room. If no instance has room for a
        free stream, the stream's watchers show this reason.

        Args:
            order: Sorts the leases. The last ones are given up first.
            in_order: The leases of the streams whose marks are renewed.
        Raises:
            StoreError: No lease counts as extended. The next heartbeat reads which leases the instance has.
        """
        async with self._heartbeat() as (session, asked_at):
            # This extends the registration. It also brings the registration back if it has expired or was deleted.
            await self._register(session)
            # Read the leases from the store: a claim may have succeeded although its commit was not confirmed.
            shown = await self._leases.owned_streams(session, self._instance_id)
            kept = await self._leases.extend_leases(session, shown, expiry=self._lease)
            loads = await self._queries.stream_loads(session)
            division = divide(
                loads,
                me=self._instance_id,
                instances=await self._leases.live_instances(session, kind=_KIND),
                owned=order(kept, loads),
                capacity=self._capacity,
            )
            claimed = await self._claim(session, division)
            waiting = division.waiting(fence.stream_digest for fence in claimed)
            if waiting:
                await self._queries.write_waiting_reasons(session, self._reasons(waiting))
            marks = await self._marks.renew_marks(session, [*kept, *claimed], in_order)
        self._mark_crowded(waiting)
        release = [fence.stream_digest for fence in division.release]
        return Heartbeat(asked_at, [*kept, *claimed], release, marks)

    async def extend(self, fences: Iterable[Fence], in_order: Iterable[Fence] = ()) -> Heartbeat:
        """Extend these leases, and claim nothing.

        Raises:
            StoreError: No lease counts as extended.
        """
        async with self._heartbeat() as (session, asked_at):
            await self._register(session)
            kept = await self._leases.extend_leases(session, list(fences), expiry=self._lease)
            marks = await self._marks.renew_marks(session, kept, in_order)
        return Heartbeat(asked_at, kept, [], marks)

    @asynccontextmanager
    async def _heartbeat(self) -> AsyncIterator[tuple[AsyncSession, float]]:
        """Open the transaction of a heartbeat. Yield its session, and the time just before the transaction was opened.

        Raises:
            StoreUnavailable: The transaction took longer than a third of the lease.
        """
        asked_at = self._own_lease.now()
        limit = (self._lease * _TIMEOUT).total_seconds()
        try:
            # Without a limit, a statement on a dead connection would wait for minutes.
            with anyio.fail_after(limit):
                async with self._database.transaction() as session:
                    yield session, asked_at
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._database.name} did not take a heartbeat within {limit:g} s"
            ) from error

    async def release(self, fences: Iterable[Fence], digests: Iterable[str]) -> None:
        """Release leases, so that other instances may claim the streams at once.

        Args:
            digests: The streams whose watchers are shown as waiting from now on.
        Raises:
            StoreError: It is not known whether the leases are released. The next heartbeat reads this from the store.
        """
        async with self._database.transaction() as session:
            await self._give_up(session, fences, digests)

    async def leave(self, owned: Mapping[str, Fence]) -> None:
        """Release all leases, and show this instance as gone."""
        async with self._database.transaction() as session:
            await self._give_up(session, owned.values(), owned)
            await self._leases.deregister_instance(session, self._instance_id)

    async def _give_up(self, session: Any, fences: Iterable[Fence], digests: Iterable[str]) -> None:
        digests = list(digests)
        # Lock the streams before the watchers. The transaction that stores DAG files uses the same order, so that it
        # cannot deadlock with this one.
        await self._leases.release_streams(session, list(fences))
        await self._queries.reset_to_waiting(session, digests, self._instance_id)
        announce(session, Signal.STREAMS_CHANGED, *digests)

    async def _claim(self, session: AsyncSession, division: StreamDivision) -> list[Fence]:
        """Claim free streams up to our share, and beyond it the streams for which no other instance has room.

        A stream is not claimed if this instance has no room for its triggers.
        """
        claimed: list[Fence] = []
        room = division.room
        rest = {digest: division.free[digest] for digest in division.beyond}
        for sizes, limit in ((division.free, division.claim), (rest, len(rest))):
            new_leases = await self._leases.claim_streams(
                session,
                self._instance_id,
                limit=limit,
                room=room,
                sizes=sizes,
                expiry=self._lease,
            )
            for fence in new_leases:
                room -= division.free[fence.stream_digest]
                rest.pop(fence.stream_digest, None)
            claimed += new_leases
        return claimed

    def _reasons(self, waiting: Mapping[str, int]) -> dict[str, str]:
        capacity = self._capacity
        return {
            digest: f"no room: its stream has {_triggers(size)}, [triggerer] capacity is {capacity}"
            if size > capacity
            else f"no room: every instance hosts up to {capacity} triggers ([triggerer] capacity)"
            for digest, size in waiting.items()
        }

    def _mark_crowded(self, waiting: Mapping[str, int]) -> None:
        """Warn once about streams for which no instance has room."""
        if new := waiting.keys() - self._crowded:
            _log.warning(
                "no instance has room for some streams; their watchers wait",
                streams=len(new),
                triggers=sum(waiting[digest] for digest in new),
                capacity=self._capacity,
                hint="start another instance (PostgreSQL), or raise [triggerer] capacity",
            )
        self._crowded = frozenset(waiting)


def _triggers(count: int) -> str:
    return f"{count} trigger{'s' * (count != 1)}"
