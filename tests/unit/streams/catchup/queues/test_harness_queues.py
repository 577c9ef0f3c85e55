"""Falling behind alone on a queue, through `StreamHarness`; `test_catching_up.py` tests rules that logs share."""

from __future__ import annotations

import pytest

from tests.unit.streams.scene import Scene, Selecting, always, payloads_of
from triggerer.testing import StreamHarness


@pytest.fixture
def scene(queue_scene: Scene) -> Scene:
    return queue_scene


@pytest.mark.rule("18: a lane that waits delays no other lane")
async def test_messages_without_order_are_lanes_of_their_own(scene: Scene) -> None:
    scene.fails["sick"] = lambda event: event == "bad"
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.broker.publish_unordered("bad", 1, 2)
        await streams.quiesce()
        assert sorted(map(str, payloads_of(well))) == ["1", "2", "bad"]
        assert sick.behind[("message", 0)] == ["bad"]
        for _ in range(3):
            await streams.restart(sick)
            await streams.quiesce()
        assert sorted(payloads_of(sick)) == [1, 2]
        assert sick.behind == {("message", 0): ["bad"]}


async def test_unwanted_messages_are_not_stored(scene: Scene) -> None:
    scene.fails["x"] = always
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(Selecting(scene.name, "y"))
        await streams.add(scene.watcher("well"))
        sick = await streams.add(Selecting(scene.name, "x"))
        scene.publish("y", "x", "y", "x")
        await streams.quiesce()
        assert sick.behind == {0: ["x", "x"]}


async def test_a_stored_message_that_is_rejected_is_parked(scene: Scene) -> None:
    scene.fails["sick"] = always
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish("a", "b", "c")
        await streams.quiesce()
        scene.fails.clear()
        scene.rejects = lambda event: event == "b"
        await streams.restart(sick)
        await streams.quiesce()
        assert payloads_of(sick) == ["a", "c"]
        assert sick.behind == {}
        assert sick.set_aside == ["b"]


async def test_catch_up_events_are_persisted_when_the_test_says_so(scene: Scene) -> None:
    scene.fails["sick"] = always
    async with StreamHarness(catch_up=True, persistence="manual") as streams:
        await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish("a", "b")
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        assert sick.behind == {0: ["a", "b"]}
        scene.fails.clear()
        await streams.restart(sick)
        await streams.quiesce()
        assert [event.payload for event in sick.unpersisted] == ["a", "b"]
        assert payloads_of(sick) == []
        await streams.persist()
        assert payloads_of(sick) == ["a", "b"]


async def test_one_that_is_removed_has_nothing_kept_for_it(scene: Scene) -> None:
    scene.fails["sick"] = always
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish("a")
        await streams.quiesce()
        await streams.remove(sick)
        scene.publish("b")
        await streams.quiesce()
        assert sick.behind == {}
        assert payloads_of(well) == ["a", "b"]
        assert scene.broker.committed() == 2


async def test_without_catch_up_what_fails_is_redelivered_to_all(scene: Scene) -> None:
    scene.fails["sick"] = always
    async with StreamHarness() as streams:
        await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish("a")
        await streams.quiesce()
        assert sick.behind == {}
        assert sick.set_aside == []
