"""The queries of hosts (`triggerer.hosting.queries`), answered from the model of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING

from triggerer.domain.dag_files.new_streams import may_open
from triggerer.domain.events import Fence
from triggerer.domain.watchers.lane_positions import LanePosition, ReplayRequest
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.domain.watchers.stream_marks import StoredMark
from triggerer.store.watchers.hosting import StreamLoad, TriggerRow, WatcherState
from triggerer.testing.simulation.database.model import LoadsShown

if TYPE_CHECKING:
    from triggerer.testing.simulation.database.transactions import Transaction
    from triggerer.testing.simulation.kernel.delivery import ParkedRow


class SimulatedLeaseQueries:
    """The queries of one host on leases.

    Args:
        record_leases: Called after each committed heartbeat with all leases that the host owns.
    """

    def __init__(self, record_leases: Callable[[list[Fence]], None]) -> None:
        self._record_leases = record_leases

    async def register_instance(
        self, session: Transaction, instance_id: str, *, kind: str, expiry: timedelta
    ) -> None:
        owners = await session.owners()
        owners.instances[instance_id] = session.store.now() + expiry

    async def evict_others(self, session: Transaction, instance_id: str, *, kind: str) -> None:
        raise NotImplementedError("no simulated host takes over at once")

    async def deregister_instance(self, session: Transaction, instance_id: str) -> None:
        owners = await session.owners()
        for digest, (owner, epoch) in owners.leases.items():
            if owner == instance_id:
                owners.leases[digest] = (None, epoch)
        owners.instances.pop(instance_id, None)

    async def live_instances(self, session: Transaction, *, kind: str) -> list[str]:
        now = session.store.now()
        instances = (await session.owners()).instances
        return sorted(one for one, expires_at in instances.items() if expires_at > now)

    async def owned_streams(self, session: Transaction, instance_id: str) -> list[Fence]:
        held = (await session.owners()).leases
        return [
            Fence(digest, owner, epoch)
            for digest, (owner, epoch) in held.items()
            if owner == instance_id
        ]

    async def extend_leases(
        self, session: Transaction, fences: Iterable[Fence], *, expiry: timedelta
    ) -> list[Fence]:
        owners = await session.owners()
        held = [one for one in fences if owners.leases[one.stream_digest] == one[1:]]
        for fence in held:
            owners.expiries[fence.stream_digest] = session.store.now() + expiry
        session.granted_leases += held
        session.on_success = self._record_leases
        return held

    async def claim_streams(
        self,
        session: Transaction,
        instance_id: str,
        *,
        limit: int,
        room: int,
        sizes: Mapping[str, int],
        expiry: timedelta,
    ) -> list[Fence]:
        owners = await session.owners()
        now = session.store.now()
        claimed: list[Fence] = []
        fitting = sorted(digest for digest, size in sizes.items() if size <= room)
        # Do as the real statement does: read at most `limit` rows, and skip streams that do not fit into `room`.
        for digest in [one for one in fitting if owners.is_free(one, now)][: max(limit, 0)]:
            if sizes[digest] <= room:
                room -= sizes[digest]
                _, epoch = owners.leases[digest]
                claimed.append(Fence(digest, instance_id, epoch + 1))
                owners.leases[digest] = (instance_id, epoch + 1)
                owners.expiries[digest] = now + expiry
        session.granted_leases += claimed
        return claimed

    async def release_streams(self, session: Transaction, fences: Iterable[Fence]) -> None:
        owners = await session.owners()
        for digest, owner, epoch in fences:
            if owners.leases[digest] == (owner, epoch):
                owners.leases[digest] = (None, epoch)


class SimulatedMarkQueries:
    """The queries of one host on marks. No mark is found, because the simulated brokers store none."""

    async def renew_marks(
        self, session: Transaction, fences: Iterable[Fence], renewed: Iterable[Fence]
    ) -> dict[Fence, StoredMark]:
        return {}


class SimulatedHostingQueries:
    """The queries of one host on triggers and the states of their watchers."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id

    async def load_stored_backlogs(
        self, session: Transaction, stream_digests: Iterable[str]
    ) -> dict[int, list[StoredBacklog]]:
        await session.store.faults.delay()
        return _stored_backlogs(session, stream_digests, are_replayed=False)

    async def load_triggers(
        self, session: Transaction, stream_digests: Iterable[str]
    ) -> list[TriggerRow]:
        await session.store.faults.delay()
        digests = set(stream_digests)
        rows = [row for row in session.store.triggers.values() if row.stream_digest in digests]
        stored = _stored_backlogs(session, digests, are_replayed=True)
        # Read replay requests before positions, as the real code does. Carrying out a request sets positions and
        # deletes the request. In the other order, a request carried out between the two reads would be missed: the
        # positions would be old, and the request gone.
        asked: dict[int, tuple[ReplayRequest, ...]] = {}
        for _, request in sorted(session.store.replays.items()):
            asked[request.watcher_id] = (*asked.get(request.watcher_id, ()), request)
        await session.store.faults.delay()
        positions: dict[int, tuple[LanePosition, ...]] = {}
        for (watcher, lane), stored_row in sorted(session.store.positions.items()):
            row = LanePosition(
                watcher,
                str(lane),
                stored_row.position,
                stored_row.since,
                stored_row.failures,
                stored_row.reemit,
                stored_row.rewound_to,
            )
            positions[watcher] = (*positions.get(watcher, ()), row)
        return [
            replace(
                row,
                positions=tuple(one for watcher in served for one in positions.get(watcher, ())),
                stored_lanes=tuple(one for watcher in served for one in stored.get(watcher, ())),
                replays=tuple(one for watcher in served for one in asked.get(watcher, ())),
            )
            for row in rows
            for served in ([watcher.watcher_id for watcher in row.watchers],)
        ]

    async def stream_loads(self, session: Transaction) -> list[StreamLoad]:
        store = session.store
        owners = await session.owners()
        now = store.now()
        counts = Counter(row.stream_digest for row in store.triggers.values())
        loads = [
            StreamLoad(
                digest,
                counts[digest],
                None if owners.is_free(digest, now) else owner,
                may_open(store.closed_until.get(digest), now),
            )
            for digest, (owner, epoch) in owners.leases.items()
            # A stream without watchers has a row only if it had an owner before.
            if counts[digest] or epoch
        ]
        living = sum(expires_at > now for expires_at in owners.instances.values())
        shown = LoadsShown({load.digest: load for load in loads}, living)
        store.shown[self._instance_id] = shown
        return loads

    async def write_waiting_reasons(self, session: Transaction, reasons: Mapping[str, str]) -> None:
        """Store no reasons, because the simulation does not read them."""
        await session.store.faults.delay()

    async def existing_watchers(self, session: Transaction, watcher_ids: Iterable[int]) -> set[int]:
        await session.store.faults.delay()
        return session.store.declared & set(watcher_ids)

    async def write_states(self, session: Transaction, states: Sequence[WatcherState]) -> None:
        await session.store.faults.delay()
        await session.show(states)

    async def reset_to_waiting(
        self, session: Transaction, stream_digests: Iterable[str], owner: str
    ) -> None:
        """Reset no states, because the simulation does not read them."""
        await session.store.faults.delay()


def _stored_backlogs(
    session: Transaction, stream_digests: Iterable[str], *, are_replayed: bool
) -> dict[int, list[StoredBacklog]]:
    digests = set(stream_digests)
    lanes: dict[tuple[int, str], list[ParkedRow]] = {}
    for row in sorted(session.store.parked.values(), key=attrgetter("id")):
        if row.is_stored and row.body[0] in digests and (row.was_set_aside or not are_replayed):
            lanes.setdefault((row.watcher, row.lane), []).append(row)
    found: dict[int, list[StoredBacklog]] = {}
    for (watcher, lane), rows in lanes.items():
        backlog = StoredBacklog(watcher, lane, min(row.parked_at for row in rows), len(rows))
        found.setdefault(watcher, []).append(backlog)
    return found
