"""A message that a live filter rejects ends somewhere visible: at the broker, or set aside for the watcher."""

from typing import Any

import anyio
import orjson
import pytest

from tests.unit.streams.scene import Scene, Sink, always, hosting
from triggerer.abc import AdvanceOutcome
from triggerer.domain.watchers.parked import ParkedState, SetAside
from triggerer.errors import LeaseLost

pytestmark = pytest.mark.rule(
    "18: a rejected message goes to the broker's dead letters, or is parked"
)


def is_bad(event: Any) -> bool:
    return str(event).startswith("bad")


def aside(sink: Sink) -> list[tuple[int, Any]]:
    return [
        (watcher, orjson.loads(one.data)[1])
        for watcher, one, state in sink.messages.values()
        if state is ParkedState.SET_ASIDE
    ]


def told(scene: Scene) -> dict[Any, AdvanceOutcome]:
    return {value: AdvanceOutcome(*counts) for value, counts in scene.advanced}


@pytest.fixture(params=["log", "queue"])
def source(request: pytest.FixtureRequest, scene: Scene) -> Scene:
    scene.is_queue = request.param == "queue"
    return scene


async def test_a_message_that_all_reject_is_parked_for_each_of_them(source: Scene) -> None:
    sink = Sink()
    source.rejects = is_bad
    async with hosting(source, sink, "one", "two"):
        source.publish("a", "bad", "b")
        await sink.until(lambda: sink.derived(1) == sink.derived(2) == ["a", "b"])
        await sink.until(lambda: len(source.advanced) == 3)
    assert aside(sink) == [(1, "bad"), (2, "bad")]
    assert told(source)["bad"] == AdvanceOutcome(0, 0, 2)
    assert source.reported_parked == ["bad"]
    (_, first, _), _ = sink.messages.values()
    assert (first.error, first.failures) == ("one cannot read bad", 0)
    assert first.key == f"{source.broker.identity}/0/1"


async def test_a_message_that_a_sibling_accepts_is_parked_for_the_other_alone(
    source: Scene,
) -> None:
    sink = Sink()
    source.rejected_by["one"] = is_bad
    async with hosting(source, sink, "one", "two") as (_, one, _):
        source.publish("a", "bad", "b")
        await sink.until(lambda: sink.derived(2) == ["a", "bad", "b"])
        await sink.until(lambda: len(source.advanced) == 3)
        assert not one.catching_up
    assert aside(sink) == [(1, "bad")]
    assert sink.derived(1) == ["a", "b"]


async def test_the_broker_is_not_told_before_it_is_durable(source: Scene) -> None:
    sink = Sink()
    source.rejects = is_bad
    sink.delayed_messages = []
    async with hosting(source, sink, "one"):
        source.publish("a", "bad", "b")
        await sink.until(lambda: bool(sink.delayed_messages) and sink.derived(1) == ["a", "b"])
        await sink.until(lambda: [value for value, _ in source.advanced] == ["a"])
        await anyio.wait_all_tasks_blocked()
        assert [value for value, _ in source.advanced] == ["a"]
        sink.release_parked()
        await sink.until(lambda: [value for value, _ in source.advanced] == ["a", "bad", "b"])


async def test_many_that_follow_one_another_are_stored_together(source: Scene) -> None:
    sink = Sink()
    source.rejects = is_bad
    sink.delayed_messages = []
    async with hosting(source, sink, "one"):
        source.publish(*(f"bad {number}" for number in range(50)))
        await sink.until(lambda: len(sink.delayed_messages or ()) == 50)
        assert not source.advanced
        sink.release_parked()
        await sink.until(lambda: len(source.advanced) == 50)
    assert len(aside(sink)) == 50


async def test_one_that_comes_again_is_not_set_aside_twice(source: Scene) -> None:
    sink = Sink()
    source.rejects = is_bad
    source.is_breaking = True
    async with hosting(source, sink, "one"):
        source.publish("bad", "a")
        await sink.until(lambda: source.opened.count(("one", "bad")) > 2)
        source.is_breaking = False
        await sink.until(lambda: len(source.advanced) == 2)
    assert aside(sink) == [(1, "bad")]


async def test_one_that_comes_again_behind_another_is_not_stored_again(source: Scene) -> None:
    """A person may have discarded the parked message meanwhile."""
    sink = Sink()
    source.rejects = is_bad
    sink.refuses = lambda _, payload: bool(payload == "a")
    async with hosting(source, sink, "one"):
        source.publish("a", "bad")
        await sink.until(lambda: aside(sink) == [(1, "bad")])
        sink.messages.clear()
        before = source.opened.count(("one", "bad"))
        await sink.until(lambda: source.opened.count(("one", "bad")) > before + 2)
        sink.refuses = lambda *_: False
        await sink.until(lambda: source.advanced[-2:] == [("a", (1, 0, 0)), ("bad", (0, 0, 1))])
    assert not sink.messages


async def test_a_message_that_the_broker_dead_letters_is_not_parked(source: Scene) -> None:
    sink = Sink()
    source.rejects = is_bad
    source.has_dead_letters = True
    async with hosting(source, sink, "one"):
        source.publish("bad", "a")
        await sink.until(lambda: len(source.advanced) == 2)
    assert told(source)["bad"] == AdvanceOutcome(0, 0, 1)
    assert (sink.messages, source.reported_parked) == ({}, [])


async def test_a_message_that_two_watchers_reject_is_one_dead_letter(source: Scene) -> None:
    sink = Sink()
    source.rejects = is_bad
    source.has_dead_letters = True
    async with hosting(source, sink, "one", "two"):
        source.publish("bad", "a")
        await sink.until(lambda: len(source.advanced) == 2)
    assert told(source)["bad"] == AdvanceOutcome(0, 0, 2)
    assert source.broker.dead_letters == ["bad"]


async def test_where_a_sibling_fails_it_and_is_behind_it_is_set_aside_all_the_same(
    source: Scene,
) -> None:
    sink = Sink()
    source.rejected_by["one"] = is_bad
    source.fails["two"] = is_bad
    async with hosting(source, sink, "one", "two") as (_, _, two):
        source.publish("bad", "a")
        await sink.until(lambda: 2 in two.catching_up or sink.derived(2) == ["a"])
        await sink.until(lambda: sink.derived(1) == ["a"])
        await sink.until(lambda: (1, "bad") in aside(sink))
        source.fails.clear()
        await sink.until(lambda: set(sink.derived(2)) == {"bad", "a"} or (2, "bad") in aside(sink))


async def test_at_a_bound_the_watcher_stands_there_alone(source: Scene) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    source.rejected_by["one"] = is_bad
    async with hosting(source, sink, "one", "two") as (_, one, _):
        source.publish("bad", "a")
        await sink.until(lambda: "full" in (one.refusals.latest or ""))
        assert not sink.messages
        sink.is_full_of_parked = False
        await sink.until(lambda: aside(sink) == [(1, "bad")])
        await sink.until(lambda: sink.derived(1) == ["a"] and "a" in sink.derived(2))
    assert sink.derived(2) == ["bad", "a"]


async def test_at_a_bound_the_message_of_a_lone_watcher_comes_again(source: Scene) -> None:
    sink = Sink()
    sink.is_full_of_parked = True
    source.rejects = is_bad
    async with hosting(source, sink, "one"):
        source.publish("bad", "a")
        await sink.until(lambda: source.opened.count(("one", "bad")) > 2)
        assert AdvanceOutcome(0, 1, 0) in [AdvanceOutcome(*counts) for _, counts in source.advanced]
        sink.is_full_of_parked = False
        await sink.until(lambda: aside(sink) == [(1, "bad")])
        await sink.until(lambda: source.advanced[-1] == ("a", (1, 0, 0)))
    assert sink.derived(1) == ["a"]


async def test_one_that_cannot_be_written_as_bytes_is_not_lost(source: Scene) -> None:
    sink = Sink()
    source.rejects = source.cannot_dump = is_bad
    async with hosting(source, sink, "one") as (_, one):
        source.publish("bad", "a")
        await sink.until(lambda: source.opened.count(("one", "bad")) > 2)
        assert "cannot write bad" in (one.refusals.latest or "")
        source.cannot_dump = lambda _: False
        await sink.until(lambda: aside(sink) == [(1, "bad")])
        await sink.until(lambda: source.advanced[-1] == ("a", (1, 0, 0)))
    assert sink.derived(1) == ["a"]


async def test_after_a_lost_lease_nothing_is_advanced(source: Scene) -> None:
    sink = Sink()
    source.rejects = is_bad
    sink.delayed_messages = []
    async with hosting(source, sink, "one"):
        source.publish("bad", "a")
        await sink.until(lambda: len(sink.delayed_messages or ()) == 1)
        (change,) = sink.delayed_messages
        assert isinstance(change.what, SetAside)
        change.on_done(LeaseLost("another instance owns it"))
        await sink.until(lambda: sink.derived(1) == ["a"])
        assert not source.advanced


async def test_a_replayed_message_that_fails_is_parked_again_with_the_reason(source: Scene) -> None:
    sink = Sink()
    source.rejects = always
    async with hosting(source, sink, "one"):
        source.publish("bad")
        await sink.until(lambda: len(source.advanced) == 1)
    sink.replay_parked()
    stored_backlogs = sink.stored_backlogs()
    async with hosting(source, sink, "one", stored_backlogs=stored_backlogs):
        await sink.until(lambda: aside(sink) == [(1, "bad")])
