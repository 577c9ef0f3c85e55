"""A watcher reads its lane's newest messages from memory, or from the log if newer messages have displaced them."""

from __future__ import annotations

import random

import anyio
import pytest

from tests.unit.streams.scene import Scene, Sink, always, hosting
from triggerer.streams import RuntimeSettings
from triggerer.streams.catchup.reading.lane_tail import LaneTail, LogMessage

SICK, WELL = 1, 2


@pytest.fixture
def sink() -> Sink:
    return Sink()


def test_a_message_that_made_room_is_not_covered() -> None:
    lane_tail = LaneTail(most=2)
    for number in range(4):
        lane_tail.append(LogMessage(["log", number], number, number), 1)
    assert lane_tail.after(["log", 1], 5) is None
    found = lane_tail.after(["log", 2], 5)
    assert found is not None
    assert [message.event for message in found] == [2, 3]
    assert lane_tail.after(["log", 4], 5) == []
    assert lane_tail.after(["another", 2], 5) is None


@pytest.mark.rule("18: after catch-up a watcher goes live without a gap")
async def test_messages_that_left_the_memory_while_a_filter_worked_are_read_from_the_log(
    scene: Scene, sink: Sink
) -> None:
    """An earlier version skipped 961 of 3,041 messages for a filter that waited half a second in a busy lane."""
    scene.fails["sick"] = lambda event: event == 0
    async with hosting(scene, sink):
        scene.publish(0)
        await sink.until(lambda: (SICK, "0") in sink.positions)
        scene.publish(*range(1, 41))
        await sink.until(lambda: len(sink.derived(WELL)) == 41)
        gate = scene.gates["sick", 20] = anyio.Event()
        scene.fails.clear()
        await sink.until(lambda: ("sick", 20) in scene.opened)
        scene.publish(*range(41, 3_041))
        await sink.until(lambda: len(sink.derived(WELL)) == 3_041)
        gate.set()
        await sink.until(lambda: sink.positions == {(SICK, "0"): None})
        assert sink.derived(SICK) == list(range(3_041))


@pytest.mark.rule("18: after catch-up a watcher goes live without a gap")
@pytest.mark.parametrize("seed", range(10))
async def test_however_little_is_in_memory_nothing_is_missed(
    seed: int, scene: Scene, sink: Sink
) -> None:
    rng = random.Random(seed)
    scene.fails["sick"] = always
    settings = RuntimeSettings(most_recent=rng.randint(1, 20))
    for number in rng.sample(range(200), 20):
        scene.gates["sick", number] = anyio.Event()
    published: list[int] = []
    async with hosting(scene, sink, settings=settings):
        while len(published) < 200:
            first = len(published)
            published.extend(range(first, first + rng.randint(1, 30)))
            scene.publish(*published[first:])
            await sink.until(lambda: sink.derived(WELL) == published)
            scene.fails.clear()
            for gate in rng.sample(list(scene.gates.values()), 3):
                gate.set()
        for gate in scene.gates.values():
            gate.set()
        await sink.until(lambda: sink.derived(SICK)[-1:] == published[-1:])
        assert sink.derived(SICK) == published
