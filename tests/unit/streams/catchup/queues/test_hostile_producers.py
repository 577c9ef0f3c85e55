"""If a producer raises or returns nonsense while a message is being stored, only this message is affected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from tests.unit.streams.scene import (
    MAX_DELIVERIES,
    Breaking,
    BreakingQueue,
    Scene,
    Sink,
    Watching,
    context,
    hosting,
)
from triggerer.abc import SharedStreamProducer
from triggerer.domain.watchers.lane_positions import LanePosition, ReplayRequest
from triggerer.domain.watchers.parked import ParkedChange, SetAside
from triggerer.streams import Manager, RuntimeContext
from triggerer.streams.pending_limit import PendingLimit


class HostileScene(Scene):
    """A scene whose producer raises for the key of "bad". If `is_lost` is set, it raises for every position.

    "well" derives no event from "bad", so only "sick" needs the key of "bad".
    """

    def __init__(self) -> None:
        super().__init__()
        self.keyless: set[Any] = {"bad"}
        """Messages for which `get_idempotency_key` raises."""
        self.is_lost = False
        """Whether `get_position` raises."""
        self.dump: Callable[[bytes], Any] = lambda data: data
        self.has_keys = True
        self.groups = 0
        self.ignores = lambda event: event == "bad" and self.opened[-1] == ("well", "bad")

    def watcher(self, name: str) -> Watching:
        return WatchingHostile(scene=self.name, name=name)


class HostileQueue(BreakingQueue):
    scene: HostileScene

    def get_idempotency_key(self, broker_payload: Any) -> Any:
        if broker_payload.value in self.scene.keyless:
            raise ValueError("there is no id in it")
        return super().get_idempotency_key(broker_payload) if self.scene.has_keys else None

    def dump_event(self, event: Any) -> Any:
        return self.scene.dump(super().dump_event(event))


class HostileLog(HostileQueue, Breaking):
    def get_position(self, broker_payload: Any) -> list[Any]:
        if self.scene.is_lost:
            raise ValueError("there is no offset in it")
        return super().get_position(broker_payload)


class WatchingHostile(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        scene = Scene.by_name[kwargs["scene"]]
        assert isinstance(scene, HostileScene)
        scene.groups += 1
        return HostileQueue(scene) if scene.is_queue else HostileLog(scene)


@pytest.fixture
def scene() -> HostileScene:
    return HostileScene()


@pytest.mark.rule("11: an error of one producer harms no other stream")
@pytest.mark.parametrize("takes_it", [True, False])
async def test_a_message_whose_key_cannot_be_told_is_set_aside_by_its_place(
    scene: HostileScene, takes_it: bool
) -> None:
    """If the filter accepts "bad", the producer's error is the only reason to park the message.

    In an earlier version, this error ended the service.
    """
    sink, pending = Sink(), PendingLimit(10)
    scene.fails["sick"] = lambda event: event == "bad" and not takes_it
    async with hosting(scene, sink, catch_up_pending=pending):
        scene.publish("a", "bad", "c", "d")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d"])
        assert pending.count == 0
        ((watcher, one, _),) = sink.messages.values()
        assert (watcher, one.data) == (1, b'["in memory","bad"]')
        said = "ValueError: there is no id in it" if takes_it else "RuntimeError: cannot take bad"
        assert (one.error, one.failures) == (said, MAX_DELIVERIES + 1)
        assert one.key == f"0@['{scene.broker.identity}', 1]"
        assert sink.derived(2) == ["a", "c", "d"]


@pytest.mark.rule("11: an error of one producer harms no other stream")
async def test_an_event_that_cannot_be_submitted_does_not_count_as_pending(
    scene: HostileScene,
) -> None:
    """All watchers share the limit on pending events."""

    def raise_at_bad(watcher_id: int, payload: Any) -> bool:
        if payload == "bad":
            raise OSError("the payload's own code")
        return False

    sink, pending = Sink(), PendingLimit(10)
    sink.refuses = raise_at_bad
    scene.keyless.clear()
    async with hosting(scene, sink, catch_up_pending=pending):
        scene.publish("a", "bad", "c", "d")
        await sink.until(lambda: sink.derived(1) == ["a", "c", "d"])
        assert pending.count == 0
    assert [one.error for _, one, _ in sink.messages.values()] == [
        "OSError: the payload's own code"
    ]


@pytest.mark.rule("11: an error of one producer harms no other stream")
async def test_where_nothing_can_be_set_aside_a_message_without_key_is_rejected_all_the_same(
    scene: HostileScene,
) -> None:
    sink = Sink()
    without_parked = RuntimeContext(sink, sink, restart_first=0.01, restart_longest=0.01)
    row = LanePosition(1, "0", [scene.broker.identity, 0], context(sink).now())
    scene.publish("a", "bad", "c")
    scene.broker.seek(3)
    scene.rejects = lambda event: event == "bad"
    async with Manager(without_parked) as manager:
        manager.add(scene.specs("sick", "well", positions=(row,)))
        await sink.until(lambda: sink.derived(1) == ["a", "c"])


@pytest.mark.rule("11: an error of one producer harms no other stream")
async def test_where_a_message_cannot_be_written_as_bytes_its_lane_waits(
    scene: HostileScene,
) -> None:
    """`dump_event` returns a number instead of bytes."""
    sink = Sink()
    scene.keyless.clear()
    scene.dump = len
    scene.fails["sick"] = lambda event: event == "bad"
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a", "bad", "c")
        await sink.until(lambda: "returned int" in str(sick.catching_up.get(1)))
        assert not sink.messages
        scene.dump = lambda data: data
        await sink.until(lambda: sink.derived(1) == ["a", "c"])
    assert len(sink.messages) == 1


class Broken(Sink):
    """A sink that raises when it receives the first parked message."""

    has_raised = False

    def _park(self, change: ParkedChange) -> None:
        if isinstance(change.what, SetAside) and not self.has_raised:
            self.has_raised = True
            raise OSError("whatever it is")
        super()._park(change)


async def test_whatever_is_raised_when_a_failure_is_noted_ends_only_the_attempt(
    scene: HostileScene,
) -> None:
    sink = Broken()
    scene.fails["sick"] = lambda event: event == "bad"
    async with hosting(scene, sink):
        scene.publish("a", "bad", "c")
        await sink.until(lambda: sink.derived(1) == ["a", "c"])
    assert sink.has_raised
    assert len(sink.messages) == 1


# Queues


@pytest.mark.rule("11: an error of one producer harms no other stream")
@pytest.mark.parametrize("takes_it", [True, False])
async def test_a_message_of_a_queue_is_kept_also_if_its_key_cannot_be_told(
    scene: HostileScene, takes_it: bool
) -> None:
    """An earlier version ended the group at each redelivery of the message."""
    sink = Sink()
    scene.is_queue = True
    scene.fails["sick"] = lambda event: event == "bad" and not takes_it
    async with hosting(scene, sink):
        scene.publish("a", "bad", "c", "d")
        await sink.until(lambda: sink.derived(2) == ["a", "c", "d"])
        await sink.until(lambda: len(sink.derived(1)) == 3 + takes_it)
        await sink.until(lambda: scene.broker.committed() == 4)
    assert sink.derived(1) == (["a", "bad", "c", "d"] if takes_it else ["a", "c", "d"])
    assert len(sink.messages) == (not takes_it)
    assert scene.groups == 1


@pytest.mark.rule("11: an error of one producer harms no other stream")
async def test_undecided_messages_are_read_in_order_even_without_a_key(
    scene: HostileScene,
) -> None:
    sink = Sink()
    scene.is_queue = True
    scene.fails["sick"] = lambda event: scene.opened.count(("sick", "a")) == 1
    scene.gates["well", "bad"] = slow = anyio.Event()
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a", "b", "bad", "c")
        await sink.until(lambda: sink.derived(1) == ["a", "b"])
        assert sick.catching_up == {1: None}
        slow.set()
        await sink.until(lambda: sink.derived(1) == ["a", "b", "bad", "c"])
    assert scene.groups == 1


async def test_messages_that_a_queue_parked_without_keys_are_not_replaced_by_another_group(
    scene: HostileScene,
) -> None:
    """The messages of two groups have equal numbers. In an earlier version, the second message replaced the first."""
    sink = Sink()
    scene.is_queue, scene.has_keys = True, False
    scene.keyless.clear()
    scene.rejects = lambda event: event == "bad" and scene.opened[-1] == ("sick", "bad")
    for group in range(2):
        scene.opened.clear()
        scene.fails["sick"] = lambda event: event == "a" and scene.opened.count(("sick", "a")) == 1
        scene.gates["well", "bad"] = slow = anyio.Event()
        async with hosting(scene, sink):
            # "well" holds "bad" open, so its fate is undecided, and "sick" reads it from memory.
            scene.publish("a", "bad")
            await sink.until(lambda group=group: len(sink.messages) > group)
            slow.set()
            await sink.until(lambda group=group: scene.broker.committed() == 2 * (group + 1))
    assert [one.data for _, one, _ in sink.messages.values()] == [b'["in memory","bad"]'] * 2


# Being set back


@pytest.mark.rule("11: an error of one producer harms no other stream")
async def test_where_no_position_can_be_told_a_replay_fails_and_the_store_goes_on(
    scene: HostileScene,
) -> None:
    """In an earlier version, an error of `get_position` was raised in the task that stores the positions of all
    streams."""
    sink = Sink()
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b")
        await sink.until(lambda: sink.derived(1) == sink.derived(2) == ["a", "b"])
        sink.delayed_positions = []
        manager.rewind(sick, [ReplayRequest(7, 1, None, True)])
        await sink.until(lambda: bool(sink.delayed_positions))
        scene.gates["well", "c"] = slow = anyio.Event()
        scene.publish("c")
        await sink.until(lambda: ("well", "c") in scene.opened)
        scene.is_lost = True
        sink.release()
        scene.is_lost = False
        assert "no offset" in str(sick.replay_errors.get(1))
        slow.set()
        await sink.until(lambda: sink.derived(1) == sink.derived(2) == ["a", "b", "c"])
