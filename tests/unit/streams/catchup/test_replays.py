"""Replays: an operator sets a watcher back, in a log in memory (contract, rule 18)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import anyio
import pytest
from structlog.testing import capture_logs

from tests.unit.streams.catchup.test_catching_up import payloads_of
from tests.unit.streams.scene import Scene, Sink, Watching
from triggerer.abc import BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import (
    LanePosition,
    PositionChange,
    Reemission,
    ReplayEnd,
    ReplayRequest,
)
from triggerer.streams import Manager, Member, RuntimeContext, TriggerSpec
from triggerer.testing import InMemoryBroker, InMemoryProducer, StreamHarness


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
async def test_a_watcher_gets_the_whole_log_once_more_and_its_sibling_nothing(scene: Scene) -> None:
    async with StreamHarness(catch_up=True) as streams:
        one = await streams.add(scene.watcher("one"))
        other = await streams.add(scene.watcher("other"))
        scene.publish(*range(10))
        await streams.quiesce()
        with capture_logs() as logs:
            await streams.replay(one)
            await streams.quiesce()
        (line,) = (one for one in logs if one["event"] == "a watcher is rewound")
        assert line["watcher"] == one.member.name
        assert payloads_of(one) == [*range(10), *range(10)]
        assert payloads_of(other) == [*range(10)]
        assert one.behind == {}
        scene.publish(10, 11)
        await streams.quiesce()
        assert payloads_of(one) == [*range(10), *range(12)]
        assert payloads_of(other) == [*range(12)]
        assert scene.broker.committed() == 12


async def test_a_watcher_that_is_added_late_can_have_the_history(scene: Scene) -> None:
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(scene.watcher("first"))
        scene.publish(*range(5), lane="a")
        scene.publish(*range(5), lane="b")
        await streams.quiesce()
        late = await streams.add(scene.watcher("late"))
        scene.publish(5, lane="a")
        await streams.quiesce()
        assert payloads_of(late) == [5]
        await streams.replay(late)
        await streams.quiesce()
        assert sorted(payloads_of(late)) == sorted([*range(5), *range(5), 5, 5])
        assert late.behind == {}


async def test_it_is_set_back_to_a_time(scene: Scene) -> None:
    async with StreamHarness(catch_up=True) as streams:
        one = await streams.add(scene.watcher("one"))
        scene.publish(*range(3))
        await streams.quiesce()
        log = scene.broker.logs()[0]
        log.published_at[:] = [1_000.0, 2_000.0, 3_000.0]
        await streams.replay(one, datetime.fromtimestamp(1_500, UTC))
        await streams.quiesce()
        assert payloads_of(one) == [0, 1, 2, 1, 2]


@pytest.mark.rule("a replay without messages never ends, so no other replay can begin")
@pytest.mark.parametrize("reemit", [False, True])
async def test_a_replay_of_nothing_ends_and_another_can_follow(scene: Scene, reemit: bool) -> None:
    """kurrent-io/KurrentDB#1438: a replay of nothing left "replaying" set."""
    async with StreamHarness(catch_up=True) as streams:
        one = await streams.add(scene.watcher("one"))
        await streams.replay(one, reemit=reemit)
        await streams.quiesce()
        assert one.behind == {}
        scene.publish(*range(3))
        await streams.quiesce()
        await streams.replay(one, datetime.now(UTC) + timedelta(days=1), reemit=reemit)
        await streams.quiesce()
        assert one.behind == {}
        assert one.error is None
        assert payloads_of(one) == [0, 1, 2]
        await streams.replay(one, reemit=reemit)
        await streams.quiesce()
        assert payloads_of(one) == [0, 1, 2, 0, 1, 2]


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
async def test_one_that_is_behind_at_an_earlier_place_stays_there(scene: Scene) -> None:
    scene.fails["sick"] = lambda event: event >= 2
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish(*range(6))
        await streams.quiesce()
        scene.broker.logs()[0].published_at[:] = [1_000.0 * n for n in range(6)]
        await streams.replay(sick, datetime.fromtimestamp(4_000, UTC))
        await streams.quiesce()
        assert sick.behind == {0: [scene.broker.identity, 2]}
        await streams.replay(sick, datetime.fromtimestamp(1_000, UTC))
        await streams.quiesce()
        assert sick.behind == {0: [scene.broker.identity, 1]}
        scene.fails.clear()
        await streams.restart(sick)
        await streams.quiesce()
        assert payloads_of(sick) == [0, 1, 1, 2, 3, 4, 5]


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
async def test_it_is_never_set_forward_past_what_the_group_has_not_broadcast(scene: Scene) -> None:
    """The group has not yet broadcast the messages of the requested time."""
    scene.publish(*range(10))
    scene.broker.logs()[0].published_at[:] = [1_000.0 * n for n in range(10)]
    async with StreamHarness(catch_up=True, persistence="manual") as streams:
        one = await streams.add(scene.watcher("one"))
        await streams.replay(one, datetime.fromtimestamp(8_000, UTC))
        await streams.quiesce()
        while one.unpersisted:
            await streams.persist(1)
            await streams.quiesce()
        assert set(payloads_of(one)) == set(range(10))
        assert scene.broker.committed() == 10
        scene.publish(10)
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        assert payloads_of(one)[-1] == 10
        assert payloads_of(one).count(10) == 1


async def test_messages_that_arrive_during_a_replay_follow_it_once(scene: Scene) -> None:
    async with StreamHarness(catch_up=True, persistence="manual") as streams:
        one = await streams.add(scene.watcher("one"))
        scene.publish(*range(5))
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        await streams.replay(one)
        await streams.quiesce()
        scene.publish(5, 6)
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        assert payloads_of(one) == [*range(5), *range(7)]
        assert scene.broker.committed() == 7


async def test_a_second_replay_begins_anew_at_the_earlier_place(scene: Scene) -> None:
    scene.fails["one"] = lambda event: event == 3
    async with StreamHarness(catch_up=True) as streams:
        one = await streams.add(scene.watcher("one"))
        await streams.add(scene.watcher("other"))
        scene.publish(*range(3))
        await streams.quiesce()
        scene.publish(3, 4)
        await streams.quiesce()
        scene.broker.logs()[0].published_at[:] = [1_000.0 * n for n in range(5)]
        await streams.restart(one)
        await streams.quiesce()
        # The watcher has failed at 3, and waits before its next try. A replay from 2 does not wait for this try.
        await streams.replay(one, datetime.fromtimestamp(2_000, UTC))
        await streams.quiesce()
        assert payloads_of(one) == [0, 1, 2, 2]
        await streams.replay(one)
        await streams.quiesce()
        assert one.behind == {0: [scene.broker.identity, 3]}
        scene.fails.clear()
        await streams.restart(one)
        await streams.quiesce()
        assert payloads_of(one) == [0, 1, 2, 2, 0, 1, 2, 3, 4]


class Kept(Sink):
    """Stores what a database would: events by key, positions and, unless `ends_are_lost`, the ends of replays."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, LanePosition] = {}
        self.ends: list[int] = []
        self.ends_are_lost = False

    @property
    def ended(self) -> set[int]:
        return set(self.ends)

    def submit_nowait(self, *given: Any) -> None:
        change = given[0]
        if isinstance(change, PositionChange) and self.delayed_positions is None:
            self.rows.pop(change.lane, None)
            if change.position is not None:
                self.rows[change.lane] = LanePosition(
                    change.watcher_id,
                    change.lane,
                    change.position,
                    change.since,
                    change.failures,
                    change.reemit,
                    change.rewound_to,
                )
        super().submit_nowait(*given)

    def end_replay_nowait(self, end: ReplayEnd) -> None:
        self.changed.notify_all()
        if not self.ends_are_lost:
            self.ends.append(end.request)
            end.on_done(None)

    def keys(self, scene: Scene) -> list[str]:
        """Return the keys of all events, without their common prefix."""
        begins = f"{scene.broker.identity}/0/"
        return sorted(str(key).removeprefix(begins) for _, key, _ in self.events)


@asynccontextmanager
async def hosting(scene: Scene, sink: Kept) -> AsyncIterator[tuple[Manager, Member]]:
    """One owner of the stream, which knows what the sink has stored."""
    context = RuntimeContext(sink, sink, restart_first=0.01, restart_longest=0.01)
    async with Manager(context) as manager:
        (member,) = manager.add([spec(scene, "one", 1, sink)])
        yield manager, member


def spec(scene: Scene, name: str, watcher_id: int, sink: Kept) -> TriggerSpec:
    kwargs = scene.watcher(name).serialize()[1]
    source = EventSource((WatcherRef(watcher_id, 0),), Fence("stream", "me", 1))
    rows = tuple(row for row in sink.rows.values() if row.watcher_id == watcher_id)
    return TriggerSpec(name, partial(Watching, **kwargs), kwargs, source, rows)


AGAIN = ReplayRequest(7, 1, None, True)


@pytest.mark.rule("18: with `--again` a replay makes each event again, even through crashes")
async def test_with_again_each_message_has_one_event_more_and_what_is_new_has_one(
    scene: Scene,
) -> None:
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        scene.publish(*range(3))
        await sink.until(lambda: len(sink.events) == 3)
        sink.delayed_positions = []
        manager.rewind(member, [AGAIN])
        await sink.until(lambda: bool(sink.delayed_positions))
        # The watcher stays live until the replay's position is durable, so it gets message 3 live. The replay does not
        # cover message 3, because the log did not have it when the replay began.
        scene.publish(3)
        await sink.until(lambda: len(sink.events) == 4)
        sink.release()
        await sink.until(lambda: len(sink.events) == 7)
        scene.publish(4)
        await sink.until(lambda: len(sink.events) == 8)
        await sink.until(lambda: not sink.rows and sink.ended == {7})
    assert sink.keys(scene) == ["0", "0#r7", "1", "1#r7", "2", "2#r7", "3", "4"]


@pytest.mark.rule("18: with `--again` a replay makes each event again, even through crashes")
async def test_with_again_a_new_owner_goes_on_with_the_same_keys_up_to_the_same_end(
    scene: Scene,
) -> None:
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        scene.publish(*range(6))
        await sink.until(lambda: len(sink.events) == 6)
        scene.fails["one"] = lambda event: event == 3
        manager.rewind(member, [AGAIN])
        await sink.until(lambda: len(sink.events) == 9)
        await sink.until(lambda: sink.ended == {7})
    scene.fails.clear()
    scene.publish(6)
    # Set the broker back, as if its last advances had been lost.
    scene.broker.seek(2)
    async with hosting(scene, sink) as (manager, _):
        await sink.until(lambda: len(sink.events) == 13)
        scene.publish(7)
        await sink.until(lambda: len(sink.events) == 14 and not sink.rows)
    reemitted = [f"{number}#r7" for number in range(6)]
    assert sink.keys(scene) == sorted([*reemitted, *map(str, range(8))])


@pytest.mark.rule("18: with `--again` a replay makes each event again, even through crashes")
async def test_a_request_that_is_repeated_after_a_crash_finds_the_end_of_the_first_time(
    scene: Scene,
) -> None:
    """The owner dies when the positions are durable and the request has not ended."""
    sink = Kept()
    sink.ends_are_lost = True
    async with hosting(scene, sink) as (manager, member):
        scene.publish(*range(3))
        await sink.until(lambda: len(sink.events) == 3)
        manager.rewind(member, [AGAIN])
        await sink.until(lambda: bool(sink.rows))
        scene.publish(3)
        await sink.until(lambda: sink.rows["0"].reemit is not None)
        # Nothing is read again before the request has ended.
        assert len(sink.events) == 3
    sink.ends_are_lost = False
    async with hosting(scene, sink) as (manager, member):
        manager.rewind(member, [AGAIN])
        await sink.until(lambda: len(sink.events) == 7)
        manager.rewind(member, [AGAIN])
        scene.publish(4)
        await sink.until(lambda: len(sink.events) == 8 and not sink.rows)
        assert sink.ended == {7}
    assert sink.keys(scene) == ["0", "0#r7", "1", "1#r7", "2", "2#r7", "3", "4"]


@pytest.mark.rule("18: with `--again` a replay makes each event again, even through crashes")
async def test_a_request_is_carried_out_again_if_its_stream_ends_before_its_place_is_known(
    scene: Scene,
) -> None:
    """Both the replay's position and the position of a later failure become durable only after the stream has ended."""
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        manager.add([spec(scene, "other", 2, sink)])
        scene.publish(*range(3))
        await sink.until(lambda: len(sink.events) == 6)
        sink.delayed_positions = []
        manager.rewind(member, [AGAIN])
        await sink.until(lambda: bool(sink.delayed_positions))
        scene.fails["one"] = lambda event: event == 3
        scene.publish(3)
        await sink.until(lambda: len(sink.delayed_positions or ()) == 2)
        manager.abandon(member)
        late, sink.delayed_positions = sink.delayed_positions, None
        for change in late:
            sink.submit_nowait(change)
        assert not sink.ended
    scene.fails.clear()
    async with hosting(scene, sink) as (manager, member):
        manager.rewind(member, [AGAIN])
        await sink.until(lambda: sink.ended == {7})
        scene.publish(4)
        await sink.until(lambda: (1, f"{scene.broker.identity}/0/4", 0) in sink.events)
    made = [key for watcher, key, _ in sink.events if watcher == 1]
    begins = f"{scene.broker.identity}/0/"
    assert {f"{begins}{number}#r7" for number in range(3)} < set(made)


async def _add_other(scene: Scene, sink: Kept, manager: Manager) -> Member:
    """Add a second watcher, and let both watchers read three messages."""
    (other,) = manager.add([spec(scene, "other", 2, sink)])
    scene.publish(*range(3))
    await sink.until(lambda: len(sink.events) == 6)
    return other


async def test_a_replay_begins_once_although_a_watcher_with_another_replay_is_deleted_meanwhile(
    scene: Scene,
) -> None:
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        other = await _add_other(scene, sink, manager)
        sink.delayed_positions = []
        manager.rewind(member, [AGAIN])
        manager.rewind(other, [ReplayRequest(8, 2, None, True)])
        await sink.until(lambda: bool(sink.delayed_positions))
        manager.remove(other, on_purpose=True)
        await anyio.wait_all_tasks_blocked()
        assert [change.watcher_id for change in sink.delayed_positions] == [1]
        sink.release()
        await sink.until(lambda: len(sink.events) == 9)
    assert sink.ends == [7]


async def test_a_replay_begins_once_although_the_store_answers_late_for_a_deleted_watcher(
    scene: Scene,
) -> None:
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        other = await _add_other(scene, sink, manager)
        delayed: list[PositionChange] = []
        sink.delayed_positions = delayed
        manager.rewind(member, [AGAIN])
        manager.rewind(other, [ReplayRequest(8, 2, None, True)])
        await sink.until(lambda: bool(delayed))
        manager.remove(member, on_purpose=True)
        await sink.until(lambda: len(delayed) == 2)
        delayed.pop(0).on_done(None)
        await anyio.wait_all_tasks_blocked()
        assert [change.watcher_id for change in delayed] == [2]
        sink.release()
        await sink.until(lambda: len(sink.events) == 9)
    assert sink.ends == [8]


def _move_away(manager: Manager, member: Member) -> None:
    """Let the trigger's watcher read another stream, as a reconciliation does if the arguments have changed."""
    manager.remove(member, on_purpose=False)
    manager.add([])


async def _move_away_during_a_replay(
    sink: Kept, manager: Manager, member: Member
) -> list[PositionChange]:
    """Move the watcher to another stream before its replay's position is stored. Return the unanswered changes."""
    delayed: list[PositionChange] = []
    sink.delayed_positions = delayed
    manager.rewind(member, [AGAIN])
    await sink.until(lambda: bool(delayed))
    _move_away(manager, member)
    return delayed


def _come_back(scene: Scene, sink: Kept, manager: Manager) -> None:
    """Let the watcher read its first stream again. The store still shows its request."""
    (member,) = manager.add([spec(scene, "one", 1, sink)])
    manager.rewind(member, [AGAIN])


async def test_a_watcher_that_leaves_during_its_replay_and_comes_back_is_rewound(
    scene: Scene,
) -> None:
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        await _add_other(scene, sink, manager)
        delayed = await _move_away_during_a_replay(sink, manager, member)
        sink.delayed_positions = None
        delayed.pop().on_done(None)
        assert not sink.ended
        _come_back(scene, sink, manager)
        await sink.until(lambda: sink.ended == {7})
        await sink.until(lambda: len(sink.events) == 9)
    assert sink.ends == [7]


async def test_a_late_answer_for_a_watcher_that_has_left_does_not_end_its_new_replay(
    scene: Scene,
) -> None:
    """The first replay's position was stored, but its row was deleted when the watcher had left the stream."""
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        await _add_other(scene, sink, manager)
        delayed = await _move_away_during_a_replay(sink, manager, member)
        _come_back(scene, sink, manager)
        await sink.until(lambda: len(delayed) == 2)
        delayed.pop(0).on_done(None)
        await anyio.wait_all_tasks_blocked()
        assert not sink.ended
        sink.release()
        await sink.until(lambda: sink.ended == {7})
        await sink.until(lambda: len(sink.events) == 9)
    assert sink.ends == [7]


async def test_a_watcher_that_was_added_to_a_running_trigger_is_rewound_after_it_has_come_back(
    scene: Scene,
) -> None:
    sink = Kept()
    request = ReplayRequest(9, 3, None, True)
    async with hosting(scene, sink) as (manager, member):
        await _add_other(scene, sink, manager)
        fence = member.source.fence
        manager.replace_source(member, EventSource((WatcherRef(3, 0),), fence), name="one")
        delayed: list[PositionChange] = []
        sink.delayed_positions = delayed
        manager.rewind(member, [request])
        await sink.until(lambda: bool(delayed))
        _move_away(manager, member)
        sink.delayed_positions = None
        (again,) = manager.add([spec(scene, "one", 3, sink)])
        manager.rewind(again, [request])
        await sink.until(lambda: sink.ended == {9})
        await sink.until(lambda: sink.derived(3) == [0, 1, 2])


async def test_a_request_that_was_carried_out_is_not_repeated_for_a_watcher_that_stays(
    scene: Scene,
) -> None:
    """The host may read the request's row a second time, just before the row is deleted."""
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        await _add_other(scene, sink, manager)
        manager.rewind(member, [AGAIN])
        await sink.until(lambda: sink.ended == {7})
        manager.add([])
        manager.rewind(member, [AGAIN])
        await anyio.wait_all_tasks_blocked()
    assert sink.ends == [7]


@pytest.mark.parametrize("reemit", [False, True])
async def test_its_row_goes_also_if_the_broker_was_advanced_to_its_place_while_it_read_again(
    scene: Scene, reemit: bool
) -> None:
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        manager.add([spec(scene, "other", 2, sink)])
        scene.gates["other", 2] = slow = anyio.Event()
        scene.publish(*range(5))
        # The broker does not advance past the message that "other" has open.
        await sink.until(lambda: len(sink.events) == 7)
        scene.gates["one", 3] = reading = anyio.Event()
        manager.rewind(member, [ReplayRequest(7, 1, None, reemit)])
        await sink.until(lambda: sink.ended == {7})
        slow.set()
        await sink.until(lambda: scene.broker.committed() == 5)
        assert sink.rows
        reading.set()
        # The row must not wait for the lane's next message, which may come much later.
        await sink.until(lambda: not sink.rows)
        assert len(sink.events) == (15 if reemit else 10)


class Fragile(InMemoryProducer):
    """If a test has put an event into `first`, the scene's next producer reads nothing. Its poll raises once the event
    is set.
    """

    first: ClassVar[dict[InMemoryBroker, anyio.Event]] = {}

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        if (may_raise := self.first.pop(self._broker, None)) is not None:
            await may_raise.wait()
            raise RuntimeError("the connection is gone")
        async for pair in super().open_stream():
            yield pair


class WatchingFragile(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Fragile(Scene.by_name[kwargs["scene"]].broker)


@pytest.mark.rule("18: a replay sets one watcher back, never forward")
async def test_it_is_not_set_forward_past_what_the_next_group_has_broadcast_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position becomes durable when another group runs. That group has not broadcast the requested time yet."""
    monkeypatch.setattr(f"{__name__}.Watching", WatchingFragile)
    Fragile.first[scene.broker] = may_raise = anyio.Event()
    sink = Kept()
    sink.delayed_positions = []
    scene.publish(*range(10))
    scene.broker.logs()[0].published_at[:] = [1_000.0 * n for n in range(10)]
    scene.gates["one", 3] = slow = anyio.Event()
    scene.fails["one"] = lambda event: event == 3
    async with hosting(scene, sink) as (manager, member):
        manager.add([spec(scene, "other", 2, sink)])
        manager.rewind(member, [ReplayRequest(7, 1, datetime.fromtimestamp(8_000, UTC), False)])
        await sink.until(lambda: bool(sink.delayed_positions))
        may_raise.set()
        await sink.until(lambda: ("one", 3) in scene.opened)
        sink.release()
        await sink.until(lambda: sink.ended == {7})
        slow.set()
        await sink.until(lambda: scene.opened.count(("one", 3)) > 2)
        scene.fails.clear()
        await sink.until(lambda: set(sink.derived(1)) == set(range(10)))


@pytest.mark.rule("18: with `--again` a replay makes each event again, even through crashes")
async def test_a_replay_behind_what_an_earlier_one_has_made_again_is_carried_out(
    scene: Scene,
) -> None:
    """An earlier replay with `--again` ends at 3, and the watcher is at 5. The new replay begins at 6."""
    sink, log = Kept(), scene.broker.identity
    reemit = Reemission(1, [log, 0], [log, 3])
    sink.rows["0"] = LanePosition(1, "0", [log, 5], datetime.now(UTC), 0, reemit)
    scene.publish(*range(8))
    scene.broker.logs()[0].published_at[:] = [1_000.0 * n for n in range(8)]
    scene.gates["one", 5] = slow = anyio.Event()
    async with hosting(scene, sink) as (manager, member):
        await sink.until(lambda: ("one", 5) in scene.opened)
        manager.rewind(member, [ReplayRequest(2, 1, datetime.fromtimestamp(6_000, UTC), True)])
        await sink.until(lambda: sink.ended == {2})
        slow.set()
        await sink.until(lambda: len(sink.events) == 3)
    assert sink.keys(scene) == ["5", "6#r2", "7#r2"]


@pytest.mark.rule("18: a replay makes no event that exists already")
async def test_without_again_nothing_is_made_twice(scene: Scene) -> None:
    sink = Kept()
    async with hosting(scene, sink) as (manager, member):
        scene.publish(*range(3))
        await sink.until(lambda: len(sink.events) == 3)
        manager.rewind(member, [ReplayRequest(1, 1, None, False)])
        await sink.until(lambda: sink.ended == {1})
        scene.publish(3)
        await sink.until(lambda: len(sink.events) == 4 and not sink.rows)
    assert sink.keys(scene) == ["0", "1", "2", "3"]


class Alone(BaseEventTrigger):
    """Without a shared stream."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Alone", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent("done")


class Fast(BaseEventTrigger):
    """On the fast path."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Fast", {}

    def shared_stream_key(self) -> Hashable:
        return "fast"

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        yield 1
        await anyio.sleep_forever()

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            yield TriggerEvent(event)


@pytest.mark.parametrize("trigger", [Alone, Fast])
async def test_one_whose_messages_do_not_stay_shows_why_it_cannot_be_replayed(
    trigger: type[BaseEventTrigger],
) -> None:
    async with StreamHarness(catch_up=True) as streams:
        view = await streams.add(trigger())
        await streams.quiesce()
        await streams.replay(view)
        await streams.quiesce()
        assert "do not stay in a log" in str(view.error)
        assert len(view.events) == 1
