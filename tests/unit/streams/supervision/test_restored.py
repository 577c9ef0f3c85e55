"""After a restore of the database, a stream carries out its requests before it pulls a message."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from tests.unit.streams.catchup.test_replays import Kept, hosting, spec
from tests.unit.streams.scene import Scene, Watching
from triggerer.abc import SharedStreamProducer, StoreMark
from triggerer.domain.events import Fence
from triggerer.domain.watchers.lane_positions import ReplayRequest
from triggerer.domain.watchers.stream_marks import StoredMark
from triggerer.errors import BrokerRefused
from triggerer.streams import Manager, Member, RuntimeContext
from triggerer.testing import InMemoryProducer

RESTORE = ReplayRequest(7, 1, datetime.fromtimestamp(2_000, UTC), False, is_restore=True)


class Source(InMemoryProducer):
    """Counts its look-ups, and refuses the first ones. The broker's position carries a mark."""

    look_ups: ClassVar[list[datetime | None]] = []
    refusals: ClassVar[int] = 0
    at_broker: ClassVar[str | None] = None
    mark: StoreMark | None = None

    def use_mark(self, mark: StoreMark) -> None:
        self.mark = mark

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        if self.mark is not None:
            self.mark.check([self.at_broker])
        async for pair in super().open_stream():
            yield pair

    async def find_positions(self, start: datetime | None) -> Mapping[Any, list[Any]]:
        self.look_ups.append(start)
        if Source.refusals:
            Source.refusals -= 1
            raise BrokerRefused("not now")
        return await super().find_positions(start)


class WatchingSource(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Source(Scene.by_name[kwargs["scene"]].broker)


@pytest.fixture
def log(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Six messages; the broker counts four of them as read."""
    monkeypatch.setattr("tests.unit.streams.catchup.test_replays.Watching", WatchingSource)
    Source.look_ups.clear()
    Source.refusals, Source.at_broker = 0, None
    scene.publish(*range(6))
    scene.broker.logs()[0].published_at[:] = [1_000.0 * n for n in range(6)]
    scene.broker.seek(4)
    return scene


async def test_what_was_lost_comes_before_what_is_new(log: Scene) -> None:
    sink = Kept()
    async with hosting(log, sink) as (manager, member):
        manager.rewind(member, [RESTORE])
        await sink.until(lambda: len(sink.derived(1)) == 4)
        await sink.until(lambda: sink.ended == {7})
    assert sink.derived(1) == [2, 3, 4, 5]


async def test_a_stream_waits_while_its_broker_refuses_to_find_the_positions(log: Scene) -> None:
    Source.refusals = 2
    sink = Kept()
    async with hosting(log, sink) as (manager, member):
        manager.rewind(member, [RESTORE])
        await sink.until(lambda: bool(member.replay_errors))
        assert sink.derived(1) == []
        await sink.until(lambda: len(sink.derived(1)) == 4)
    assert sink.derived(1) == [2, 3, 4, 5]


async def test_a_watcher_that_leaves_before_its_restore_and_comes_back_reads_what_was_lost(
    log: Scene,
) -> None:
    """Its sibling keeps the stream open meanwhile, and need not wait for the restore of the watcher that has left."""
    Source.refusals = sys.maxsize
    sink = Kept()
    async with hosting(log, sink) as (manager, member):
        manager.add([spec(log, "other", 2, sink)])
        manager.rewind(member, [RESTORE])
        await sink.until(lambda: bool(member.replay_errors))
        manager.remove(member, on_purpose=False)
        manager.add([])
        await sink.until(lambda: sink.derived(2) == [4, 5])
        Source.refusals = 0
        (again,) = manager.add([spec(log, "one", 1, sink)])
        manager.rewind(again, [RESTORE])
        await sink.until(lambda: sink.derived(1) == [2, 3, 4, 5])
        assert sink.ended == {7}


async def test_all_requests_of_a_restore_share_two_look_ups(log: Scene) -> None:
    sink = Kept()
    async with hosting(log, sink) as (manager, member):
        manager.rewind(
            member, [RESTORE, ReplayRequest(8, 1, RESTORE.start, False, is_restore=True)]
        )
        await sink.until(lambda: sink.ended == {7, 8})
        assert len(Source.look_ups) == 2
        await sink.until(lambda: len(sink.derived(1)) == 4)


async def test_a_queue_drops_its_request_without_an_error(scene: Scene) -> None:
    scene.is_queue = True
    sink = Kept()
    scene.publish(*range(3))
    async with hosting(scene, sink) as (manager, member):
        manager.rewind(member, [RESTORE])
        await sink.until(lambda: sink.derived(1) == [0, 1, 2] and sink.ended == {7})
        assert member.replay_errors == {}


@asynccontextmanager
async def marked(scene: Scene, sink: Kept, known: StoredMark) -> AsyncIterator[Member]:
    context = RuntimeContext(sink, sink, restart_first=0.01, restart_longest=0.01)
    context.marks.adopt({Fence("stream", "me", 1): known})
    async with Manager(context) as manager:
        (member,) = manager.add(scene.specs("one"))
        yield member


@pytest.mark.parametrize("is_restored", [False, True])
async def test_a_stream_with_a_newer_position_at_the_broker_is_not_read(
    log: Scene, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    monkeypatch.setattr(Scene, "watcher", lambda self, name: WatchingSource(self.name, name))
    known = StoredMark("a", datetime(2026, 11, 29, 2, tzinfo=UTC))
    later = datetime(2026, 11, 29, 9, tzinfo=UTC)
    Source.at_broker = StoredMark("a" if is_restored else "b", later).text
    sink = Kept()
    async with marked(log, sink, known) as member:
        if is_restored:
            await sink.until(lambda: "db restored" in str(member.error))
            assert sink.derived(1) == []
        else:
            await sink.until(lambda: sink.derived(1) == [4, 5])
