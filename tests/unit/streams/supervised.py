"""The runtime as the service uses it, restarts included, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio

from tests.unit.streams.streams import Watching
from triggerer.abc import BaseEventTrigger
from triggerer.domain.events import EventSource, HasPayload, PendingEvent, WatcherRef
from triggerer.processes.own_lease import OwnLease
from triggerer.streams import Manager, Member, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.synchronization import Notifier
from triggerer.testing.clock import VirtualClock

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Store:
    """Confirms each event at once, or keeps it in `waiting` until the test completes it."""

    def __init__(self) -> None:
        self.is_automatic = True
        self.waiting: list[PendingEvent] = []
        self.payloads: list[Any] = []
        self.room = sys.maxsize
        """The number of waiting events at which the store is full."""
        self._changed = Notifier()

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= self.room

    async def wait_for_room(self) -> None:
        while self.is_full:
            await self._changed.wait()

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        self.payloads.append(yielded.payload)
        if self.is_automatic:
            event.complete(None)
        else:
            self.waiting.append(event)

    def complete(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            event.complete(error)
        self._changed.notify_all()


class Service:
    """A manager and its surroundings. Made by `supervised`."""

    def __init__(self, settings: RuntimeSettings, *, restarts: bool, lease: OwnLease) -> None:
        self.clock = VirtualClock()
        self.store = Store()
        self.states: list[tuple[str, str]] = []
        self.manager = Manager(
            RuntimeContext(
                self.store,
                clock=self.clock,
                now=lambda: EPOCH + timedelta(seconds=self.clock.monotonic()),
                settings=settings,
                restarts=restarts,
                lease=lease,
            ),
            on_state=lambda member: self.states.append((member.name, str(member.state))),
        )

    def host(self, *triggers: Watching) -> list[Member]:
        """Add all these triggers at once, as the service does with the triggers in its database."""
        return self.manager.add(
            [
                self.spec(partial(type(one), **one.serialize()[1]), one.name, one.serialize()[1])
                for one in triggers
            ]
        )

    def spec(
        self,
        make: Callable[[], BaseEventTrigger],
        name: str,
        kwargs: dict[str, Any],
    ) -> TriggerSpec:
        return TriggerSpec(
            name=name,
            make=make,
            kwargs=kwargs,
            source=EventSource((WatcherRef(1, 1),), None),
            stream_id="stream",
        )

    @asynccontextmanager
    async def draining(self) -> AsyncIterator[anyio.Event]:
        """Drain the manager during the block; the yielded event is set once the manager is drained."""
        is_drained = anyio.Event()

        async def drain() -> None:
            await self.manager.drain(5)
            is_drained.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await self.settle_down()
            yield is_drained
            tasks.cancel_scope.cancel()

    async def settle_down(self) -> None:
        """Let all tasks run until none is ready."""
        quiet = 0
        while quiet < 5:
            await asyncio.sleep(0)
            quiet = 0 if asyncio.get_running_loop()._ready else quiet + 1  # type: ignore[attr-defined]

    async def pass_time(self, seconds: float) -> None:
        """Move the clock forward, and let tasks run at each deadline on the way."""
        end = self.clock.monotonic() + seconds
        await self.settle_down()
        while (deadline := self.clock.next_deadline()) is not None and deadline <= end:
            self.clock.move_to(deadline)
            await self.settle_down()
        self.clock.move_to(end)
        await self.settle_down()


@asynccontextmanager
async def supervised(
    settings: RuntimeSettings | None = None,
    *,
    restarts: bool = True,
    lease: OwnLease | None = None,
) -> AsyncIterator[Service]:
    service = Service(
        settings or RuntimeSettings(close_timeout=0.5),
        restarts=restarts,
        lease=lease or OwnLease.unlimited(),
    )
    is_over = False
    async with service.manager:
        yield service
        is_over = True
    # If the manager cancels the block, the test's checks do not run. This assertion then fails the test.
    assert is_over, "the manager was cancelled from within"


async def forever(_: object = None) -> None:
    await anyio.sleep_forever()
