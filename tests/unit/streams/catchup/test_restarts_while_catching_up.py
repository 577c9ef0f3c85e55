"""`StreamHarness.restart` while work that began before the restart is still under way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.unit.streams.scene import Scene, Watching, always, payloads_of
from triggerer.abc import TriggerEvent, current_subscriber
from triggerer.streams.catchup.processing.catch_up import CatchUp
from triggerer.testing import HostedView, StreamHarness


class WatchingSlowly(Watching):
    """Waits at the gates "catch up", before its catch-up filter pulls a message, and "cleanup"."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        if isinstance(current_subscriber.get(), CatchUp):
            await self._pass("catch up")
        async for event in super().filter_shared_stream(shared_stream):
            yield event

    async def cleanup(self) -> None:
        await self._pass("cleanup")

    async def _pass(self, place: str) -> None:
        scene = Scene.by_name[self.scene]
        if (gate := scene.gates.get((self.name, place))) is not None:
            await gate.wait()
        fails = scene.fails.get(self.name)
        if fails is not None and fails(place):
            raise RuntimeError(f"cannot {place}")


def slowly(scene: Scene, name: str) -> Watching:
    return WatchingSlowly(scene=scene.name, name=name)


async def behind_and_waiting(
    scene: Scene, streams: StreamHarness
) -> tuple[HostedView, anyio.Event]:
    """Return a watcher that is three messages behind, and an event.

    When the watcher tries the first message again, it waits for this event.
    """
    scene.fails["sick"] = always
    await streams.add(scene.watcher("well"))
    sick = await streams.add(scene.watcher("sick"))
    scene.publish(*range(3))
    await streams.quiesce()
    gate = scene.gates["sick", 0] = anyio.Event()
    return sick, gate


@pytest.mark.parametrize("times", [1, 2])
async def test_a_message_that_was_open_at_the_restart_and_fails_is_tried_again(
    any_scene: Scene, times: int
) -> None:
    """A filter that awaits an outside service may fail late, when the cause has already been fixed."""
    async with StreamHarness(catch_up=True) as streams:
        sick, gate = await behind_and_waiting(any_scene, streams)
        failures = iter([True] * times)
        any_scene.fails["sick"] = lambda _: next(failures, False)
        await streams.restart(sick)
        await streams.quiesce()
        assert any_scene.opened[-1] == ("sick", 0)
        await streams.restart(sick)
        gate.set()
        await streams.quiesce()
        if times > 1:
            # The next message is not retried: it began after the restart.
            assert sick.behind
            assert payloads_of(sick) == []
            await streams.restart(sick)
            await streams.quiesce()
        assert (sick.error, sick.behind, payloads_of(sick)) == (None, {}, [0, 1, 2])


async def test_a_message_given_after_the_restart_waits_for_the_next_one(any_scene: Scene) -> None:
    async with StreamHarness(catch_up=True) as streams:
        sick, gate = await behind_and_waiting(any_scene, streams)
        any_scene.fails["sick"] = lambda event: event == 1
        await streams.restart(sick)
        await streams.quiesce()
        await streams.restart(sick)
        gate.set()
        await streams.quiesce()
        assert payloads_of(sick) == [0]
        assert any_scene.opened.count(("sick", 1)) == 1


async def test_one_that_fails_after_it_without_a_message_is_made_once_more(
    any_scene: Scene,
) -> None:
    any_scene.fails["sick"] = lambda event: event == 0
    gate = any_scene.gates["sick", "catch up"] = anyio.Event()
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(any_scene.watcher("well"))
        sick = await streams.add(slowly(any_scene, "sick"))
        any_scene.publish(*range(3))
        await streams.quiesce()
        failures = iter([True])
        any_scene.fails["sick"] = lambda event: event == "catch up" and next(failures, False)
        for _ in range(2):
            await streams.restart(sick)
            await streams.quiesce()
        gate.set()
        await streams.quiesce()
        assert next(failures, None) is None
        assert (sick.error, sick.behind, payloads_of(sick)) == (None, {}, [0, 1, 2])


async def test_one_that_is_still_being_cleaned_up_starts_afterwards(any_scene: Scene) -> None:
    any_scene.fails["sick"] = lambda event: event == 2
    gate = any_scene.gates["sick", "cleanup"] = anyio.Event()
    async with StreamHarness(catch_up=True) as streams:
        await streams.add(any_scene.watcher("well"))
        sick = await streams.add(slowly(any_scene, "sick"))
        any_scene.publish(*range(5))
        await streams.quiesce()
        assert isinstance(sick.error, RuntimeError)
        any_scene.fails.clear()
        await streams.restart(sick)
        gate.set()
        await streams.quiesce()
        assert (sick.error, sick.behind, payloads_of(sick)) == (None, {}, list(range(5)))


async def test_one_that_runs_is_not_started_again_because_of_it(any_scene: Scene) -> None:
    async with StreamHarness(catch_up=True) as streams:
        alone = await streams.add(any_scene.watcher("alone"))
        any_scene.publish(0, 1)
        await streams.quiesce()
        await streams.restart(alone)
        any_scene.fails["alone"] = lambda event: event == 2
        any_scene.publish(2)
        await streams.quiesce()
        assert any_scene.opened.count(("alone", 2)) == 1
        assert isinstance(alone.error, RuntimeError)
