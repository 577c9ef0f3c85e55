"""A person discards a stored message while its watcher works on it (contract, rule 18)."""

from __future__ import annotations

import anyio
import pytest

from tests.unit.streams.scene import MAX_DELIVERIES, Scene, Sink, hosting
from triggerer.domain.watchers.parked import ParkedState


def discard(sink: Sink, value: str) -> None:
    """As `watchers parked discard` does."""
    data = f'["in memory","{value}"]'.encode()
    (id_,) = [id_ for id_, (_, one, _) in sink.messages.items() if one.data == data]
    del sink.messages[id_]


@pytest.mark.rule("a stored message is discarded while its watcher works on it, and blocks a slot")
@pytest.mark.parametrize("is_taken", [True, False])
async def test_one_that_is_discarded_while_it_is_replayed_holds_up_nothing(
    any_scene: Scene, is_taken: bool
) -> None:
    scene, sink = any_scene, Sink()
    scene.fails["sick"] = lambda event: event in ("b", "c")
    async with hosting(scene, sink) as (manager, sick, _):
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: sink.derived(1) == ["a", "d"] and len(sink.messages) == 2)
        await sink.until(lambda: not sick.catching_up)
        scene.gates["sick", "b"] = gate = anyio.Event()
        scene.fails["sick"] = lambda event: event == "b" and not is_taken
        scene.opened.clear()
        sink.replay_parked()
        manager.replay_parked(sick, sink.stored_backlogs())
        await sink.until(lambda: ("sick", "b") in scene.opened)
        discard(sink, "b")
        gate.set()
        # The filter still receives the later messages, old and new.
        await sink.until(lambda: not sink.messages and not sick.catching_up)
        scene.publish("e")
        await sink.until(lambda: "e" in sink.derived(1))
    assert sink.derived(1) == ["a", "d", *(["b"] if is_taken else []), "c", "e"]
    assert scene.opened.count(("sick", "b")) == 1


@pytest.mark.rule("a stored message is discarded while its watcher works on it, and blocks a slot")
@pytest.mark.parametrize("is_taken", [True, False])
async def test_one_that_is_discarded_while_its_watcher_catches_up_holds_up_nothing(
    queue_scene: Scene, is_taken: bool
) -> None:
    scene, sink = queue_scene, Sink()
    scene.fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a", "b", "c")
        await sink.until(lambda: sink.stored(1) == ["b", "c"])
        scene.gates["sick", "b"] = gate = anyio.Event()
        scene.opened.clear()
        await sink.until(lambda: ("sick", "b") in scene.opened)
        if is_taken:
            scene.fails.clear()
        discard(sink, "b")
        gate.set()
        await sink.until(lambda: not sink.messages and not sick.catching_up)
        scene.publish("d")
        await sink.until(lambda: "d" in sink.derived(1))
    assert sink.derived(1) == ["a", *(["b"] if is_taken else []), "c", "d"]
    assert scene.opened.count(("sick", "b")) == 1


@pytest.mark.rule("18: a message's number of failures survives a restart")
async def test_failures_of_a_discarded_message_do_not_count_for_the_next(
    queue_scene: Scene,
) -> None:
    scene, sink = queue_scene, Sink()
    scene.fails["sick"] = lambda event: event in ("b", "c")
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a", "b", "c", "d")
        await sink.until(lambda: scene.opened.count(("sick", "b")) == MAX_DELIVERIES)
        # This is the watcher's last failure with "b" before later messages are tried as probes.
        scene.gates["sick", "b"] = gate = anyio.Event()
        await sink.until(lambda: scene.opened.count(("sick", "b")) == MAX_DELIVERIES + 1)
        discard(sink, "b")
        scene.opened.clear()
        gate.set()
        await sink.until(lambda: sink.derived(1) == ["a", "d"] and not sick.catching_up)
    ((_, one, state),) = sink.messages.values()
    assert (one.data, state) == (b'["in memory","c"]', ParkedState.SET_ASIDE)
    assert one.failures == MAX_DELIVERIES + 1
    # One of these times, "c" was a probe.
    assert scene.opened.count(("sick", "c")) >= MAX_DELIVERIES + 1
