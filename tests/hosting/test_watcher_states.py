"""The error that is stored for a watcher whose own code works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest

from tests.hosting.test_host import declare, eventually, hosting, watchers
from tests.unit.streams.streams import Upstream, Watching
from triggerer.abc import (
    ReportStanding,
    SharedStreamProducer,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.domain.watchers.parked import ParkedBounds
from triggerer.hosting import TriggerHost
from triggerer.store.database.transactions import Database
from triggerer.store.listing.views import WatcherView
from triggerer.store.watchers.listing import list_watchers
from triggerer.store.watchers.parked_listing import choose_parked, discard_parked, list_parked
from triggerer.store.watchers.parked_writer import ParkedWriter
from triggerer.store.watchers.position_writer import PositionWriter
from triggerer.store.watchers.replays import ask_for_replay
from triggerer.testing import InMemoryBroker, InMemoryQueueProducer


class OfAQueue(Watching):
    """Reads a queue in memory."""

    brokers: ClassVar[dict[str, InMemoryBroker]] = {}
    """The brokers, by the names of the upstreams."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return InMemoryQueueProducer(cls.brokers[kwargs["upstream"]])


class Rejecting(OfAQueue):
    """Rejects all messages. By the functions in `reports`, the test reports that a lane stands."""

    reports: ClassVar[list[ReportStanding]] = []

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        class Standing(InMemoryQueueProducer):
            def use_standing(self, report: ReportStanding) -> None:
                cls.reports.append(report)

        return Standing(cls.brokers[kwargs["upstream"]])

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            reject_shared_stream_event(f"it is {event}")
            if event is None:
                yield TriggerEvent(event)


@pytest.fixture
def broker(upstream: Upstream) -> InMemoryBroker:
    broker = OfAQueue.brokers[upstream.name] = InMemoryBroker()
    return broker


@asynccontextmanager
async def hosting_queues(
    database: Database, bounds: ParkedBounds | None = None
) -> AsyncIterator[TriggerHost]:
    def mark_fenced(fence: object) -> None:
        raise AssertionError(f"{fence} was lost")

    positions = PositionWriter(database, on_fenced=mark_fenced)
    parked = ParkedWriter(database, on_fenced=mark_fenced, bounds=bounds or ParkedBounds())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(positions.run)
        tasks.start_soon(parked.run)
        async with hosting(
            database,
            positions=positions,
            parked=parked,
            writers=(positions, parked),
            classes={"OfAQueue": OfAQueue, "Rejecting": Rejecting},
        ) as host:
            yield host
        tasks.cancel_scope.cancel()


def shown(
    database: Database, name: str, error: str | None, state: str = "running"
) -> Callable[[], Awaitable[bool]]:
    async def is_shown() -> bool:
        return (await watchers(database))[name] == (state, error, "me")

    return is_shown


@pytest.mark.rule(
    "18: at the limit of stored messages the stream pauses, or the producer dead-letters"
)
async def test_a_watcher_that_waits_for_a_full_sibling_is_shown_with_its_name(
    database: Database, upstream: Upstream, broker: InMemoryBroker
) -> None:
    async def fail(_: object) -> None:
        raise ValueError("cannot take it")

    upstream.on_filter["sick"] = fail
    for name in ("sick", "well"):
        await declare(database, name, upstream, classpath="OfAQueue")
    async with hosting_queues(database, ParkedBounds(max_messages=1)):
        broker.publish("a", "b")
        said = "its stream waits: the store has no room for messages of sick/w"
        await eventually(shown(database, "well", said))
        await eventually(shown(database, "sick", "ValueError: cannot take it", "failing"))
        async with database.transaction() as session:
            await discard_parked(session, await choose_parked(session))
        await eventually(shown(database, "well", None))


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
async def test_a_watcher_that_was_not_rewound_is_shown_with_the_reason(
    database: Database, upstream: Upstream, broker: InMemoryBroker
) -> None:
    await declare(database, "one", upstream, classpath="OfAQueue")
    async with hosting_queues(database):
        async with database.transaction() as session:
            await ask_for_replay(session, "one", "w", start=None, reemit=False)

        async def is_shown() -> bool:
            state, error, _ = (await watchers(database))["one"]
            said = "it was not rewound: it cannot be replayed: its messages do not stay in a log"
            return state == "running" and (error or "").startswith(said)

        await eventually(is_shown)


async def view_of(database: Database, name: str) -> WatcherView:
    async with database.reading() as session:
        (view,) = await list_watchers(session, asset=name)
        return view


@pytest.mark.rule("18: a rejected message goes to the broker's dead letters, or is parked")
async def test_a_rejected_message_counts_once_however_often_it_comes(
    database: Database, upstream: Upstream, broker: InMemoryBroker
) -> None:
    for name in ("one", "two"):
        await declare(database, name, upstream, classpath="Rejecting")
    broker.publish("hello")
    for _ in range(2):
        async with hosting_queues(database):

            async def is_counted() -> bool:
                views = [await view_of(database, name) for name in ("one", "two")]
                return [one.set_aside for one in views] == [1, 1]

            async def is_told() -> bool:
                return broker.committed() == 1

            await eventually(is_told)
            await eventually(is_counted)
        # Set the broker back, as if the advance had not reached it.
        broker.seek(0)
    async with database.reading() as session:
        rows = await list_parked(session)
    assert [(row.asset_name, row.error) for row in rows] == [
        ("one", "it is hello"),
        ("two", "it is hello"),
    ]


async def test_a_watcher_whose_lane_stands_is_failing_and_nobody_knows_how_far_it_is_behind(
    database: Database, upstream: Upstream, broker: InMemoryBroker
) -> None:
    await declare(database, "one", upstream, classpath="Rejecting")
    Rejecting.reports.clear()
    async with hosting_queues(database):

        async def has_reported() -> bool:
            return bool(Rejecting.reports)

        await eventually(has_reported)
        Rejecting.reports[0](0, "there is no topic x")

        async def is_shown() -> bool:
            view = await view_of(database, "one")
            return (view.state, view.behind, view.error) == (
                "failing",
                None,
                "lane 0 stands: there is no topic x",
            )

        await eventually(is_shown)
        Rejecting.reports[0](0, None)
        await eventually(shown(database, "one", None))
        assert (await view_of(database, "one")).behind == 0
