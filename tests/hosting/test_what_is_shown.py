"""What is stored as a watcher's error where its own code is well: it is shown to whoever lists watchers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest

from tests.hosting.test_host import declare, eventually, hosting, watchers
from tests.unit.runtime.streams import Upstream, Watching
from triggerer.abc import SharedStreamProducer
from triggerer.domain.parked import ParkedBounds
from triggerer.hosting import TriggerHost
from triggerer.store.engine.database import Database
from triggerer.store.queries.listing.parked import choose_parked, discard_parked
from triggerer.store.queries.replays import ask_for_replay
from triggerer.store.recording.parked_writer import ParkedWriter
from triggerer.store.recording.position_writer import PositionWriter
from triggerer.testing import InMemoryBroker, InMemoryQueueProducer


class OfAQueue(Watching):
    """Reads a queue in memory."""

    brokers: ClassVar[dict[str, InMemoryBroker]] = {}
    """By the name of the upstream."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return InMemoryQueueProducer(cls.brokers[kwargs["upstream"]])


@pytest.fixture
def broker(upstream: Upstream) -> InMemoryBroker:
    broker = OfAQueue.brokers[upstream.name] = InMemoryBroker()
    return broker


@asynccontextmanager
async def hosting_queues(
    database: Database, bounds: ParkedBounds | None = None
) -> AsyncIterator[TriggerHost]:
    def note_fenced(fence: object) -> None:
        raise AssertionError(f"{fence} was lost")

    positions = PositionWriter(database, on_fenced=note_fenced)
    parked = ParkedWriter(database, on_fenced=note_fenced, bounds=bounds or ParkedBounds())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(positions.run)
        tasks.start_soon(parked.run)
        async with hosting(
            database,
            positions=positions,
            parked=parked,
            writers=(positions, parked),
            classes={"OfAQueue": OfAQueue},
        ) as host:
            yield host
        tasks.cancel_scope.cancel()


def shown(database: Database, name: str, error: str | None) -> Callable[[], Awaitable[bool]]:
    async def is_shown() -> bool:
        return (await watchers(database))[name] == ("running", error, "me")

    return is_shown


@pytest.mark.rule("18: at a bound the stream is held, or the producer is handed it")
async def test_who_waits_for_another_that_holds_the_stream_is_shown_with_its_name(
    database: Database, upstream: Upstream, broker: InMemoryBroker
) -> None:
    async def fail(_: object) -> None:
        raise ValueError("cannot take it")

    upstream.on_filter["sick"] = fail
    for name in ("sick", "well"):
        await declare(database, name, upstream, classpath="OfAQueue")
    async with hosting_queues(database, ParkedBounds(max_messages=1)):
        broker.publish("a", "b")
        said = "its stream is held: no more messages can be kept for sick/w"
        await eventually(shown(database, "well", said))
        assert (await watchers(database))["sick"][:2] == ("failing", "ValueError: cannot take it")
        async with database.transaction() as session:
            await discard_parked(session, await choose_parked(session))
        await eventually(shown(database, "well", None))


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
async def test_who_was_not_set_back_is_shown_with_the_reason(
    database: Database, upstream: Upstream, broker: InMemoryBroker
) -> None:
    await declare(database, "one", upstream, classpath="OfAQueue")
    async with hosting_queues(database):
        async with database.transaction() as session:
            await ask_for_replay(session, "one", "w", start=None, again=False)

        async def is_shown() -> bool:
            state, error, _ = (await watchers(database))["one"]
            return state == "running" and (error or "").startswith("it was not set back: ")

        await eventually(is_shown)
