"""The contract's rules for subscribers hold wherever a trigger runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.isolation.conftest import Isolate, is_here, notes_of, settle, until
from tests.isolation.triggers import Alone, Beside, Deaf, Early, NoEvent, NoGenerator, Obeying
from tests.unit.streams.streams import Upstream
from triggerer.abc import AckTimeout, SubscriberOverflow
from triggerer.errors import GroupEnded, PluginError
from triggerer.isolation import Isolation
from triggerer.isolation.remote_generator import RemoteGenerator
from triggerer.testing import StreamHarness
from triggerer.testing.harness import HostedView


def values(view: HostedView) -> list[Any]:
    return [event.payload["value"] for event in view.events]


def sibling(upstream: Upstream, tmp_path: Path) -> Obeying:
    """Return a trigger that runs on the service's loop, beside the isolated one."""
    return Obeying(upstream.name, str(tmp_path), "sibling")


async def test_events_are_derived_there_and_resolved_by_moving_on(
    isolation: Isolation, isolate: Isolate, placement: str, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        events = [(1, "1"), (2, "skip"), (3, "2"), (4, "0"), (5, "1")]
        upstream.put(*events)
        # Although no event follows the last event, it is resolved: the filter has asked for another event.
        await until(lambda: len(upstream.outcomes()) == 5)
        assert values(one) == [1, 3, 3, 5]
        assert [event.partition_key for event in one.events] == [f"key {n}" for n in values(one)]
        assert all(is_here(placement, event.payload) for event in one.events)
        assert upstream.outcomes() == dict.fromkeys(events, (1, 0, 0))
        assert one.error is None


async def test_an_event_is_resolved_when_all_that_derives_from_it_is_stored(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness(persistence="manual") as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "2"), (2, "1"))
        await until(lambda: len(one.unpersisted) == 3)
        await streams.persist(1)
        await settle()
        assert upstream.advanced == []
        await streams.persist(1)
        await until(lambda: upstream.outcomes() == {(1, "2"): (1, 0, 0)})
        await settle()
        await streams.persist()
        await until(lambda: len(upstream.outcomes()) == 2)


async def test_a_derived_event_belongs_to_the_open_event(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness(persistence="manual", ack_timeout=60) as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put(*((number, "1") for number in range(5)))
        await until(lambda: len(one.unpersisted) == 5)
        await streams.persist(2)
        await streams.refuse(1)
        await streams.persist()
        await streams.sleep(60)
        await until(lambda: len(upstream.outcomes()) == 5)
        failed = {event for event, outcome in upstream.outcomes().items() if outcome[1]}
        assert failed == {(2, "1")}


@pytest.mark.parametrize("how", ["reject", "reject in a thread"])
async def test_a_rejection_resolves_at_once(
    how: str, isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "1"), (2, how), (3, "1"))
        await until(lambda: len(upstream.outcomes()) == 3)
        assert upstream.outcomes()[2, how] == (0, 0, 1)
        assert upstream.outcomes()[1, "1"] == upstream.outcomes()[3, "1"] == (1, 0, 0)


@pytest.mark.parametrize(("word", "kind"), [("raise", ValueError), ("raise stubbornly", Exception)])
async def test_a_filter_that_raises_fails_what_it_has_open(
    word: str,
    kind: type[Exception],
    isolation: Isolation,
    isolate: Isolate,
    upstream: Upstream,
    tmp_path: Path,
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "1"), (2, word))
        await until(lambda: one.error)
        await until(lambda: len(upstream.outcomes()) == 2)
        assert upstream.outcomes() == {(1, "1"): (1, 0, 0), (2, word): (0, 1, 0)}
        assert isinstance(one.error, kind)
        assert "boom" in str(one.error)


async def test_a_filter_that_raises_fails_what_it_has_not_pulled_and_its_siblings_go_on(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        other = await streams.add(
            isolate(Obeying, "two", upstream=upstream.name, notes=str(tmp_path), name="two")
        )
        beside = await streams.add(Deaf(upstream.name, str(tmp_path), "sibling"))
        upstream.put((1, "1"), (2, "raise on go"), (3, "1"))
        await until(lambda: values(beside) == [1, 2, 3])
        (tmp_path / "go").touch()
        await until(lambda: one.error and other.error)
        await until(lambda: len(upstream.outcomes()) == 3)
        assert upstream.outcomes() == {
            (1, "1"): (3, 0, 0),
            (2, "raise on go"): (1, 2, 0),
            (3, "1"): (1, 2, 0),
        }


async def test_a_filter_that_returns_leaves(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        await streams.add(Deaf(upstream.name, str(tmp_path), "sibling"))
        upstream.put((1, "return"))
        await until(lambda: [group.subscribers for group in streams.groups.values()] == [1])
        assert one.error is None
        upstream.put((2, "1"))
        await until(lambda: upstream.outcomes() == {(1, "return"): (2, 0, 0), (2, "1"): (1, 0, 0)})


async def test_the_ack_timeout_cancels_a_filter_that_is_stuck(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness(ack_timeout=60) as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        beside = await streams.add(Deaf(upstream.name, str(tmp_path), "sibling"))
        upstream.put((1, "wait"), (2, "1"))
        await until(lambda: notes_of(tmp_path) == ["waits"] and values(beside) == [1, 2])
        assert upstream.advanced == []
        await streams.sleep(60)
        await until(lambda: len(upstream.outcomes()) == 2)
        await until(lambda: one.error)
        assert isinstance(one.error, AckTimeout)
        assert set(upstream.outcomes().values()) == {(1, 1, 0)}
        await until(lambda: len(notes_of(tmp_path)) == 3)
        assert notes_of(tmp_path)[1] == "cancelled"


async def test_the_ack_timeout_is_raised_where_the_filter_awaits_the_stream(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "1"))
        await until(lambda: one.unpersisted)
        await settle()
        await streams.sleep(60)
        await until(lambda: len(notes_of(tmp_path)) == 2 and one.error)
        assert isinstance(one.error, AckTimeout)
        assert notes_of(tmp_path)[0] == "raised AckTimeout"
        await until(lambda: upstream.outcomes() == {(1, "1"): (0, 1, 0)})


async def test_overflow_fails_the_one_that_is_behind(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness(subscriber_queue_size=4) as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        beside = await streams.add(Deaf(upstream.name, str(tmp_path), "sibling"))
        upstream.put((0, "wait"))
        await until(lambda: notes_of(tmp_path))
        upstream.put(*((number, "1") for number in range(1, 10)))
        await until(lambda: len(upstream.outcomes()) == 10 and one.error)
        assert isinstance(one.error, SubscriberOverflow)
        assert values(beside) == list(range(10))
        assert upstream.outcomes()[0, "wait"] == (1, 1, 0)
        await until(lambda: not one.member.is_absent)  # its filter has started again
        upstream.put((10, "1"))
        await until(lambda: upstream.outcomes().get((10, "1")) == (1, 0, 0))


async def test_unsubscribing_accepts_what_was_pulled_and_fails_what_was_not(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        await streams.add(Deaf(upstream.name, str(tmp_path), "sibling"))
        upstream.put((1, "wait"), (2, "1"), (3, "1"))
        await until(lambda: notes_of(tmp_path))
        await streams.remove(one)
        await until(lambda: len(upstream.outcomes()) == 3)
        assert upstream.outcomes() == {
            (1, "wait"): (2, 0, 0),
            (2, "1"): (1, 1, 0),
            (3, "1"): (1, 1, 0),
        }
        await until(lambda: len(notes_of(tmp_path)) == 3)
        assert notes_of(tmp_path)[1] == "cancelled"
        assert one.error is None


async def test_the_end_of_the_group_is_raised_to_the_filter(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "1"))
        await until(upstream.outcomes)
        upstream.fail(OSError("the broker is gone"))
        await until(lambda: len(notes_of(tmp_path)) == 2 and one.error)
        assert notes_of(tmp_path)[0] == "raised GroupEnded"
        assert isinstance(one.error, GroupEnded)


async def test_it_is_cleaned_up_once_and_where_it_ran(
    isolation: Isolation, isolate: Isolate, placement: str, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "1"))
        await until(lambda: one.events)
        await streams.remove(one)
        await until(lambda: len(notes_of(tmp_path)) == 2)
        payload = one.events[0].payload
        assert notes_of(tmp_path)[1] == f"cleanup {payload['pid']} {payload['thread']}"
    assert len(notes_of(tmp_path)) == 2


# Only in a thread or a process does a pull take two steps, between which the filter can leave.
@pytest.mark.parametrize("placement", ["thread", "process"], indirect=True)
async def test_a_filter_that_leaves_as_it_pulls_is_cancelled_and_sees_no_end_of_its_stream(
    isolation: Isolation,
    isolate: Isolate,
    upstream: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    until_requested = RemoteGenerator._until_requested
    has_asked = anyio.Event()

    async def leave_in_between(generator: RemoteGenerator) -> None:
        await until_requested(generator)
        if generator._pulled:
            assert generator._subscriber is not None
            (stream,) = streams._manager.streams.values()
            assert stream.group is not None
            stream.group.subscribers.leave(generator._subscriber)
            has_asked.set()

    monkeypatch.setattr(RemoteGenerator, "_until_requested", leave_in_between)
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "1"))
        await has_asked.wait()
        await settle()
        await streams.remove(one)
        await until(lambda: len(notes_of(tmp_path)) == 2)
    assert notes_of(tmp_path)[0] == "cancelled"


async def test_an_event_yielded_before_the_first_pull_arrives_at_once(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Early, upstream=upstream.name, notes=str(tmp_path)))
        await until(lambda: values(one) == ["early"])
        upstream.put((1, "1"))
        await until(lambda: values(one) == ["early", 1])
        await until(lambda: upstream.outcomes() == {(1, "1"): (1, 0, 0)})


async def test_an_event_yielded_while_the_stream_is_awaited_arrives_at_once(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Beside, upstream=upstream.name, notes=str(tmp_path)))
        for number in range(5):
            upstream.put((number, "1"))
            await until(lambda number=number: values(one) == list(range(number + 1)))


@pytest.mark.parametrize("cls", [NoEvent, NoGenerator])
async def test_an_object_that_is_no_filter_is_refused_as_such(
    cls: type[Obeying], isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(cls, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "1"))
        await until(lambda: one.error)
        assert isinstance(one.error, PluginError)
        assert "TriggerEvent" in str(one.error) or "async generator" in str(one.error)


async def test_order_is_kept_for_many(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness(subscriber_queue_size=500, overflow_grace=60) as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put(*((number, "1") for number in range(5000)))
        await until(lambda: len(upstream.outcomes()) == 5000)
        assert values(one) == list(range(5000))
        assert set(upstream.outcomes().values()) == {(1, 0, 0)}


async def test_very_many_may_derive_from_one(
    isolation: Isolation, isolate: Isolate, upstream: Upstream, tmp_path: Path
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Obeying, upstream=upstream.name, notes=str(tmp_path)))
        upstream.put((1, "5000"), (2, "1"))
        await until(lambda: len(upstream.outcomes()) == 2)
        assert len(one.events) == 5001


async def test_a_trigger_without_a_stream(
    isolation: Isolation, isolate: Isolate, placement: str
) -> None:
    async with isolation, StreamHarness() as streams:
        one = await streams.add(isolate(Alone, count=3000))
        failing = await streams.add(isolate(Alone, "two", count=1, then="raise"))
        ending = await streams.add(isolate(Alone, "three", count=2, then="return"))
        await until(lambda: len(one.events) == 3000 and failing.error and len(ending.events) == 2)
        assert values(one) == list(range(3000))
        assert isinstance(failing.error, ValueError)
        assert values(failing) == [0]
        assert ending.error is None
        await streams.remove(one)
        await anyio.sleep(0.05)
        assert one.error is None
