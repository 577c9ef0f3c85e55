"""The database queries of a host, as interfaces. `triggerer.store` implements them, and so does the simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from triggerer.domain.events import Fence
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.domain.watchers.stream_marks import StoredMark
from triggerer.store.watchers.hosting import StreamLoad, TriggerRow, WatcherState


class MarkQueries(Protocol):
    """Queries for the marks of streams, as in `triggerer.store.streams.marks`."""

    async def renew_marks(
        self, session: Any, fences: Iterable[Fence], renewed: Iterable[Fence]
    ) -> dict[Fence, StoredMark]: ...


class LeaseQueries(Protocol):
    """Queries for live instances and for the leases of streams, as in `triggerer.store.streams.leases`."""

    async def register_instance(
        self, session: Any, instance_id: str, *, kind: str, expiry: timedelta
    ) -> None: ...

    async def evict_others(self, session: Any, instance_id: str, *, kind: str) -> None: ...

    async def deregister_instance(self, session: Any, instance_id: str) -> None: ...

    async def live_instances(self, session: Any, *, kind: str) -> list[str]: ...

    async def owned_streams(self, session: Any, instance_id: str) -> list[Fence]: ...

    async def extend_leases(
        self, session: Any, fences: Iterable[Fence], *, expiry: timedelta
    ) -> list[Fence]: ...

    async def claim_streams(
        self,
        session: Any,
        instance_id: str,
        *,
        limit: int,
        room: int,
        sizes: Mapping[str, int],
        expiry: timedelta,
    ) -> list[Fence]: ...

    async def release_streams(self, session: Any, fences: Iterable[Fence]) -> None: ...


class HostingQueries(Protocol):
    """Queries for the triggers of streams and the states of watchers, as in `triggerer.store.watchers.hosting`."""

    async def load_triggers(
        self, session: Any, stream_digests: Collection[str]
    ) -> list[TriggerRow]: ...

    async def load_stored_backlogs(
        self, session: Any, stream_digests: Iterable[str]
    ) -> dict[int, list[StoredBacklog]]: ...

    async def stream_loads(self, session: Any) -> list[StreamLoad]: ...

    async def existing_watchers(self, session: Any, watcher_ids: Iterable[int]) -> set[int]: ...

    async def write_states(self, session: Any, states: Sequence[WatcherState]) -> None: ...

    async def write_waiting_reasons(self, session: Any, reasons: Mapping[str, str]) -> None: ...

    async def reset_to_waiting(
        self, session: Any, stream_digests: Iterable[str], owner: str
    ) -> None: ...
