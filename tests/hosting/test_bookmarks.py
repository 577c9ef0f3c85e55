"""A watcher's bookmark over changed arguments and other owners, on real databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import update

from tests.hosting.test_host import LEASE, declare, eventually, watchers
from tests.store.seeding import events_in
from tests.unit.streams.streams import Upstream
from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.hosting import TriggerHost
from triggerer.hosting.factory import TriggerFactory
from triggerer.hosting.host import HostSettings
from triggerer.processes.own_lease import OwnLease
from triggerer.store.database.transactions import Database
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import Stream
from triggerer.store.watchers.bookmark_writer import BookmarkWriter
from triggerer.streams import RuntimeContext


class Counting(BaseEventTrigger):
    """Yields the numbers from its bookmark on, `step` at a time."""

    def __init__(self, upstream: str, name: str, step: int = 1) -> None:
        self.step = step

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Counting", {"step": self.step}

    async def run_from(self, bookmark: Any) -> AsyncIterator[tuple[list[TriggerEvent], Any]]:
        at = bookmark or 0
        while True:
            numbers = range(at, at + self.step)
            at += self.step
            yield [TriggerEvent({"n": n, "step": self.step}, key=str(n)) for n in numbers], at
            await anyio.sleep(0.001)


@asynccontextmanager
async def hosting(database: Database, name: str) -> AsyncIterator[None]:
    def mark_fenced(fence: Any) -> None:
        host.mark_fenced(fence)

    recorder = EventRecorder(database, on_fenced=mark_fenced)
    bookmarks = BookmarkWriter(database, on_fenced=mark_fenced)
    host = TriggerHost(
        database,
        instance_id=name,
        factory=TriggerFactory({"Counting": Counting}.__getitem__),
        runtime=RuntimeContext(
            recorder, bookmarks=bookmarks, lease=OwnLease(LEASE, margin=1 / 12), restart_first=0.01
        ),
        settings=HostSettings(
            lease=LEASE,
            heartbeat=timedelta(seconds=0.2),
            retry=timedelta(seconds=0.1),
            drain=timedelta(seconds=1),
        ),
        writers=[bookmarks],
    )
    async with anyio.create_task_group() as background:
        background.start_soon(recorder.run)
        background.start_soon(bookmarks.run)
        async with anyio.create_task_group() as tasks:
            await tasks.start(host.run)
            yield
            tasks.cancel_scope.cancel()
        background.cancel_scope.cancel()


async def numbers(database: Database) -> list[int]:
    return [event.extra["n"] for event in await events_in(database)]


async def more_than(database: Database, count: int, step: int) -> None:
    """Wait until more than `count` events exist, the last of them with this `step`."""

    async def is_so() -> bool:
        events = await events_in(database)
        return len(events) > count and events[-1].extra["step"] == step

    await eventually(is_so)


async def test_each_number_has_one_event_however_arguments_and_owners_change(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream, classpath="Counting", step=1)
    async with hosting(database, "first"):
        for step in (2, 5, 3):
            await more_than(database, 0, 1 if step == 2 else {5: 2, 3: 5}[step])
            await declare(database, "one", upstream, classpath="Counting", step=step)
        await more_than(database, 20, 3)
    count = len(await numbers(database))
    async with hosting(database, "second"):
        await more_than(database, count, 3)
    found = await numbers(database)
    assert found == list(range(len(found)))


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_an_owner_that_does_not_know_that_it_lost_its_stream_makes_no_event_twice(
    database: Database, upstream: Upstream
) -> None:
    await declare(database, "one", upstream, classpath="Counting", step=1)
    async with hosting(database, "first"):
        for number in range(5):
            count = len(await numbers(database))
            # Store another owner, whose lease is over. So the instance "first" must claim the stream again.
            async with database.transaction() as session:
                await session.execute(
                    update(Stream).values(
                        owner=f"other{number}", epoch=Stream.epoch + 1, expires_at=None
                    )
                )
            await more_than(database, count + 3, 1)
        assert (await watchers(database))["one"][2] == "first"
    found = await numbers(database)
    assert found == list(range(len(found)))
