"""In some lanes no watcher can fall behind, and the store's room for watchers that are behind is limited (rule 18)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.streams.scene import Breaking, BreakingQueue, Scene, Sink, Watching, always, hosting
from triggerer.abc import SharedStreamProducer


@pytest.mark.rule("18: in a lane that is not JSON, a failed message is redelivered to all watchers")
@pytest.mark.parametrize("lane", [b"bytes", "a\0b", "half \ud800"])
async def test_in_a_lane_that_cannot_be_stored_what_fails_comes_again_for_all(
    any_scene: Scene, lane: Any
) -> None:
    scene, sink = any_scene, Sink()
    scene.fails["sick"] = always
    async with hosting(scene, sink) as (_, sick, _):
        scene.publish("a", lane=lane)
        scene.publish("b", lane="other")
        await sink.until(lambda: scene.opened.count(("well", "a")) > 2)
        await sink.until(lambda: scene.broker.committed("other") == 1)
        assert scene.broker.committed(lane) == 0
        assert ("a", (0, 2, 0)) not in scene.advanced
        assert {at[1] for at in sink.positions} <= {'"other"'}
        assert {one.lane for _, one, _ in sink.messages.values()} <= {'"other"'}
        scene.fails.clear()
        await sink.until(lambda: scene.broker.committed(lane) == 1)
        await sink.until(lambda: sorted(sink.derived(1)) == ["a", "b"] and not sick.catching_up)
    assert sorted(sink.derived(2)) == ["a", "b"]


class _Undirected:
    """A producer whose broker has no dead letters."""

    dead_letter = SharedStreamProducer.dead_letter


class UndirectedLog(_Undirected, Breaking):
    pass


class UndirectedQueue(_Undirected, BreakingQueue):
    pass


class WatchingUndirected(Watching):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        scene = Scene.by_name[kwargs["scene"]]
        return UndirectedQueue(scene) if scene.is_queue else UndirectedLog(scene)


def without_dead_letters(scene: Scene) -> Scene:
    scene.watcher = lambda name: WatchingUndirected(scene.name, name)  # type: ignore[method-assign]
    return scene


@pytest.mark.rule("18: the number and the bytes of parked messages have limits")
async def test_at_a_bound_the_lane_waits_where_the_producer_has_no_dead_letters(
    scene: Scene,
) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    without_dead_letters(scene).fails["sick"] = lambda event: event == "b"
    async with hosting(scene, sink, parked_at_bound="dead_letter") as (_, sick, well):
        scene.publish("a", "b", "c")
        await sink.until(lambda: "full" in str(sick.catching_up.get(1)))
        assert sink.positions[1, "0"] == [scene.broker.identity, 1]
        await sink.until(lambda: sink.derived(2) == ["a", "b", "c"])
        assert well.blocked_by is None
        sink.is_full_of_parked = False
        await sink.until(lambda: sorted(sink.derived(1)) == ["a", "c"] and len(sink.messages) == 1)


@pytest.mark.rule(
    "18: at the limit of stored messages the stream pauses, or the producer dead-letters"
)
async def test_at_a_bound_the_stream_is_held_where_the_producer_has_no_dead_letters(
    queue_scene: Scene,
) -> None:
    scene, sink = without_dead_letters(queue_scene), Sink()
    sink.is_full_of_parked = True
    scene.fails["sick"] = always
    async with hosting(scene, sink, parked_at_bound="dead_letter") as (_, _, well):
        scene.publish("a", "b")
        await sink.until(lambda: well.blocked_by == "sick")
        assert scene.advanced == []
        sink.is_full_of_parked = False
        await sink.until(lambda: sink.stored(1) == ["a", "b"] and well.blocked_by is None)
        scene.fails.clear()
        await sink.until(lambda: sink.derived(1) == ["a", "b"] and not sink.messages)
