"""Falling behind alone on a queue, through `StreamHarness`: what plugin authors see of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.runtime.scene import Scene, Selecting
from triggerer.testing import HostedView, StreamHarness


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.is_queue = True
    return scene


def taken(view: HostedView) -> list[Any]:
    return [event.payload for event in view.events]


def always(_: Any) -> bool:
    return True


@pytest.mark.rule("18: siblings go on, and the broker is advanced")
async def test_one_that_raises_costs_its_sibling_nothing_and_has_all_kept(scene: Scene) -> None:
    scene.fails["sick"] = always
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish(*range(10))
        await streams.quiesce()
        assert taken(well) == list(range(10))
        assert scene.broker.committed() == 10
        assert sick.behind == {0: list(range(10))}
        assert isinstance(sick.error, RuntimeError)
        assert well.behind == {}


@pytest.mark.rule("18: what was missed comes once, in order, before anything newer")
async def test_when_it_is_mended_it_gets_what_it_missed_once_and_goes_on_live(scene: Scene) -> None:
    scene.fails["sick"] = lambda event: event >= 3
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.publish(*range(10))
        await streams.quiesce()
        assert sick.behind == {0: list(range(3, 10))}
        scene.fails.clear()
        await streams.restart(sick)
        await streams.quiesce()
        assert taken(sick) == list(range(10))
        assert sick.behind == {}
        scene.publish(*range(10, 20))
        await streams.quiesce()
        assert taken(sick) == taken(well) == list(range(20))
        assert scene.broker.committed() == 20
        given = [event for name, event in scene.opened if name == "sick"]
        assert given == [0, 1, 2, 3, *range(3, 20)], "only the one that failed came twice"


@pytest.mark.rule("18: a lone watcher leaves the backlog with the broker")
async def test_a_lone_watcher_leaves_the_backlog_with_the_broker(scene: Scene) -> None:
    scene.fails["alone"] = lambda event: event == 2
    async with StreamHarness(catch_up=True) as streams:
        alone = await streams.add(scene.watcher("alone"))
        scene.publish(*range(5))
        await streams.quiesce()
        assert alone.behind == {}
        assert scene.broker.committed() == 2
        scene.fails.clear()
        await streams.restart(alone)
        await streams.quiesce()
        assert taken(alone) == list(range(5))
        assert scene.broker.committed() == 5


@pytest.mark.rule("18: a lane that waits holds up no other")
async def test_messages_without_order_are_lanes_of_their_own(scene: Scene) -> None:
    scene.fails["sick"] = lambda event: event == "bad"
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(scene.watcher("well"))
        sick = await streams.add(scene.watcher("sick"))
        scene.broker.publish_unordered("bad", 1, 2)
        await streams.quiesce()
        assert sorted(map(str, taken(well))) == ["1", "2", "bad"]
        assert sick.behind[("message", 0)] == ["bad"]
        for _ in range(3):
            await streams.restart(sick)
            await streams.quiesce()
        assert sorted(taken(sick)) == [1, 2]
        assert sick.behind == {("message", 0): ["bad"]}


async def test_what_its_selector_leaves_out_is_not_kept(scene: Scene) -> None:
    scene.fails["x"] = always
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(Selecting(scene.name, "y"))
        await streams.add(scene.watcher("well"))
        sick = await streams.add(Selecting(scene.name, "x"))
        scene.publish("y", "x", "y", "x")
        await streams.quiesce()
        assert sick.behind == {0: ["x", "x"]}


async def test_what_it_rejects_once_it_is_kept_is_set_aside(scene: Scene) -> None:
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
        assert taken(sick) == ["a", "c"]
        assert sick.behind == {}
        assert sick.set_aside == ["b"]


async def test_what_it_catches_up_with_is_persisted_when_the_test_says_so(scene: Scene) -> None:
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
        assert taken(sick) == []
        await streams.persist()
        assert taken(sick) == ["a", "b"]


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
        assert taken(well) == ["a", "b"]
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
