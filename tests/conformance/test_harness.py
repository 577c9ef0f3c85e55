"""Tests each promise of `StreamHarness`, the harness with which plugin authors test their triggers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Hashable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
import uvloop

from tests.unit.streams.streams import Acking, Fast, Upstream
from tests.unit.streams.supervised import forever
from triggerer.abc import AckTimeout, BaseEventTrigger, SubscriberOverflow, TriggerEvent
from triggerer.errors import GroupEnded
from triggerer.streams import RuntimeSettings
from triggerer.testing import StreamHarness


@pytest.fixture
def upstream(request: pytest.FixtureRequest) -> Upstream:
    return Upstream(request.node.name)


def values(events: list[TriggerEvent]) -> list[Any]:
    return [event.payload["value"] for event in events]


class Alone(BaseEventTrigger):
    """Runs without a stream: yields `count` events, then waits, raises or returns."""

    def __init__(self, count: int, then: str = "wait") -> None:
        self.count = count
        self.then = then

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "nowhere.Alone", {"count": self.count, "then": self.then}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        for value in range(self.count):
            yield TriggerEvent({"value": value})
        if self.then == "raise":
            raise RuntimeError("boom")
        if self.then == "wait":
            await anyio.sleep_forever()


# Hosting


async def test_add_hosts_the_class_with_its_serialised_arguments_and_imports_nothing(
    upstream: Upstream,
) -> None:
    class Local(Acking):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "no.such.module.Local", {"upstream": self.upstream, "only": [1]}

    async with StreamHarness() as streams:
        one = await streams.add(Local(upstream.name, only=[0, 1, 2]))
        upstream.put(0, 1, 2)
        await streams.quiesce()
        assert values(one.events) == [1]


async def test_it_runs_on_the_callers_event_loop(upstream: Upstream) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def act(event: Any) -> None:
        loops.append(asyncio.get_running_loop())

    upstream.on_filter["one"] = act
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
    assert loops == [asyncio.get_running_loop()]


async def test_a_trigger_without_a_key_runs_on_its_own() -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Alone(3))
        two = await streams.add(Alone(1))
        await streams.quiesce()
        assert streams.groups == {}
        assert values(one.unpersisted) == [0, 1, 2]
        await streams.persist(2)
        assert values(one.events) == [0, 1]
        await streams.persist()
        assert (values(one.events), values(two.events)) == ([0, 1, 2], [0])
        assert one.error is None


async def test_a_trigger_on_its_own_that_raises_shows_its_error_and_is_not_restarted() -> None:
    async with StreamHarness() as streams:
        one = await streams.add(Alone(1, "raise"))
        await streams.sleep(3600)
        assert isinstance(one.error, RuntimeError)
        assert values(one.events) == [0]


async def test_a_trigger_that_returns_has_no_error_and_is_not_restarted() -> None:
    async with StreamHarness() as streams:
        one = await streams.add(Alone(1, "return"))
        await streams.sleep(3600)
        assert one.error is None
        assert values(one.events) == [0]


async def test_a_trigger_on_its_own_can_be_removed() -> None:
    async with StreamHarness() as streams:
        one = await streams.add(Alone(1))
        await streams.quiesce()
        await streams.remove(one)
        await streams.quiesce()
        assert one.error is None


def broken(where: str) -> BaseEventTrigger:
    """A trigger with one method that raises or returns nonsense."""

    class Broken(Acking):
        def __init__(self, upstream: str = "x", **_: Any) -> None:
            if where == "constructor" and upstream == "again":
                raise ValueError(where)
            super().__init__(upstream)

        def serialize(self) -> Any:
            if where == "serialize":
                raise ValueError(where)
            if where == "no arguments":
                return None
            if where == "unknown argument":
                return "x.Broken", [1]
            return "x.Broken", {"upstream": "again"}

        def shared_stream_key(self) -> Hashable:
            if where == "key":
                raise ValueError(where)
            if where == "unhashable key":
                return ["list"]  # type: ignore[return-value]
            return where

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
            if where == "producer":
                raise ValueError(where)
            if where == "no producer":
                return None
            raise AssertionError("not asked for in this test")

    return Broken()


@pytest.mark.rule("11: a trigger whose `serialize` raises harms no other trigger")
@pytest.mark.parametrize(
    "where",
    [
        "constructor", "serialize", "no arguments", "unknown argument", "key", "unhashable key",
        "producer", "no producer",
    ],
)  # fmt: skip
async def test_add_never_raises_for_what_a_plugin_does(where: str, upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(broken(where))
        fine = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        assert one.error is not None
        assert where == str(one.error) or not isinstance(one.error, ValueError)
        assert values(fine.events) == [0]
        assert set(streams.groups) == {("Acking", upstream.name)}


# Persistence


async def test_persist_confirms_the_oldest_over_all_triggers_in_order(upstream: Upstream) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name, "one"))
        two = await streams.add(Acking(upstream.name, "two"))
        upstream.put(0)
        await streams.quiesce()
        upstream.put(1)
        await streams.quiesce()
        await streams.persist(2)
        assert (values(one.events), values(two.events)) == ([0], [0])
        assert (values(one.unpersisted), values(two.unpersisted)) == ([1], [1])
        await streams.persist(0)
        assert values(one.unpersisted) == [1]
        await streams.persist()
        assert (values(one.events), values(two.events)) == ([0, 1], [0, 1])
        assert one.unpersisted == two.unpersisted == []
        await streams.persist()


async def test_a_refused_event_is_never_confirmed(upstream: Upstream) -> None:
    async with StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0, 1, 2)
        await streams.quiesce()
        await streams.refuse(1)
        await streams.persist()
        await streams.quiesce()
        assert values(one.events) == [1, 2]
        assert values(one.unpersisted) == [0]
        assert upstream.advanced == []
        assert not one.error
        await streams.sleep(60)
        assert isinstance(one.error, AckTimeout)
        assert upstream.outcomes() == {0: (0, 1, 0), 1: (1, 0, 0), 2: (1, 0, 0)}
        await streams.persist()
        assert values(one.events) == [1, 2]


async def test_an_event_persisted_after_its_timeout_is_stored_but_its_message_failed(
    upstream: Upstream,
) -> None:
    async with StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.sleep(60)
        assert isinstance(one.error, AckTimeout)
        await streams.persist()
        await streams.quiesce()
        assert (values(one.events), one.unpersisted) == ([0], [])
        assert upstream.outcomes() == {0: (0, 1, 0)}


def test_persistence_is_auto_or_manual() -> None:
    with pytest.raises(ValueError, match="'auto' or 'manual'"):
        StreamHarness(persistence="sometimes")  # type: ignore[arg-type]


# Time


async def test_quiesce_waits_for_work_in_threads(upstream: Upstream) -> None:
    async def with_asyncio(event: Any) -> None:
        await asyncio.to_thread(time.sleep, 0.05)

    async def with_anyio(event: Any) -> None:
        await anyio.to_thread.run_sync(
            time.sleep, 0.05, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True
        )

    async def in_turns(event: Any) -> None:
        for _ in range(3):
            await asyncio.to_thread(time.sleep, 0.01)
            await anyio.to_thread.run_sync(time.sleep, 0.01)

    acts = {"asyncio": with_asyncio, "anyio": with_anyio, "in turns": in_turns}
    upstream.on_filter.update(acts)
    async with StreamHarness() as streams:
        views = [await streams.add(Acking(upstream.name, name)) for name in acts]
        upstream.put(0, 1)
        await streams.quiesce()
        assert [values(view.events) for view in views] == [[0, 1]] * 3
        assert upstream.outcomes() == dict.fromkeys((0, 1), (3, 0, 0))


async def test_a_thread_that_waits_for_the_outside_delays_quiesce_only_once(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triggerer.testing.threads._PATIENCE_S", 0.2)
    outside = threading.Event()

    async def act(event: Any) -> None:
        await asyncio.to_thread(outside.wait, 30)

    upstream.on_filter["stuck"] = act
    async with StreamHarness() as streams:
        stuck = await streams.add(Acking(upstream.name, "stuck"))
        fine = await streams.add(Acking(upstream.name, "fine"))
        upstream.put(0)
        await streams.quiesce()
        started = time.monotonic()
        for _ in range(20):
            await streams.quiesce()
        assert time.monotonic() - started < 2
        assert (values(stuck.events), values(fine.events)) == ([], [0])
        outside.set()
        with anyio.fail_after(10):
            while not stuck.events:  # noqa: ASYNC110  (the thread sets no event)
                await anyio.sleep(0.001)


async def test_quiesce_does_not_wait_for_real_time_to_pass(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        await asyncio.sleep(3600)

    upstream.on_filter["one"] = act
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        assert one.events == []
        await streams.sleep(200)
        assert one.events == [], "the harness's clock is the runtime's own, not the filter's"
        await streams.sleep(100)
        assert isinstance(one.error, AckTimeout)


async def test_quiesce_follows_a_filter_through_many_turns_of_the_loop(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    upstream.on_filter["one"] = act
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(*range(20))
        await streams.quiesce()
        assert values(one.events) == list(range(20))


def test_quiesce_serves_uvloop_too() -> None:
    async def main() -> None:
        upstream = Upstream("uvloop")

        async def act(event: Any) -> None:
            for _ in range(100):
                await asyncio.sleep(0)
            await asyncio.to_thread(time.sleep, 0.01)

        upstream.on_filter["one"] = act
        async with StreamHarness() as streams:
            one = await streams.add(Acking(upstream.name))
            upstream.put(0, 1, 2)
            await streams.quiesce()
            assert values(one.events) == [0, 1, 2]

    uvloop.run(main())


async def test_quiesce_raises_if_the_loop_never_becomes_idle(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triggerer.testing.harness._MOST_TURNS", 1000)

    async def act(event: Any) -> None:
        while True:  # noqa: ASYNC110  (the point of the test)
            await asyncio.sleep(0)

    upstream.on_filter["one"] = act
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name))
        upstream.put(0)
        with pytest.raises(RuntimeError, match="still move"):
            await streams.quiesce()


async def test_sleep_runs_timers_in_the_order_of_their_deadlines(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        await anyio.sleep_forever()

    seen: list[tuple[str, Any]] = []
    upstream.on_filter["one"] = act
    late = Upstream(f"{upstream.name} late")
    late.on_filter["two"] = act
    async with StreamHarness(ack_timeout=60) as streams:
        one = await streams.add(Acking(upstream.name, "one"))
        two = await streams.add(Acking(late.name, "two"))

        async def note(name: str, other: Any) -> None:
            seen.append((name, other.error))

        upstream.on_advance = lambda batch: note("one", two)
        late.on_advance = lambda batch: note("two", one)
        upstream.put(0)
        await streams.sleep(10)
        late.put(0)
        await streams.sleep(1000)
        assert [name for name, _ in seen] == ["one", "two"]
        assert seen[0][1] is None, "the second had failed before the first was due"
        assert isinstance(seen[1][1], AckTimeout)


async def test_sleep_runs_a_timer_at_its_deadline_and_not_before(upstream: Upstream) -> None:
    async with StreamHarness(ack_timeout=60, persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.sleep(59.999)
        assert one.error is None
        await streams.sleep(0.001)
        assert isinstance(one.error, AckTimeout)


# Groups


async def test_groups_show_subscribers_and_outstanding_messages_by_lane(upstream: Upstream) -> None:
    async with StreamHarness(persistence="manual") as streams:
        assert streams.groups == {}
        await streams.add(Acking(upstream.name, "one", only=["a", "b"]))
        await streams.add(Acking(upstream.name, "two", only=[]))
        upstream.put("a", "x", lane="left")
        upstream.put("y", "b", "z", lane="right")
        upstream.put("q", lane="idle")
        await streams.quiesce()
        view = streams.groups["Acking", upstream.name]
        assert (view.subscribers, view.outstanding) == (2, 4)
        assert view.lanes == {"left": 2, "right": 2}
        await streams.persist()
        await streams.quiesce()
        assert streams.groups["Acking", upstream.name].lanes == {}


async def test_the_fast_path_has_groups_without_lanes(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        await streams.add(Fast(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        view = streams.groups["Fast", upstream.name]
        assert (view.subscribers, view.outstanding, view.lanes) == (1, 0, {})


async def test_a_group_that_ended_vanishes_and_the_next_add_opens_a_new_one(
    upstream: Upstream,
) -> None:
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name, "one"))
        two = await streams.add(Acking(upstream.name, "two"))
        await streams.quiesce()
        cause = OSError("broker gone")
        upstream.fail(cause)
        await streams.quiesce()
        assert streams.groups == {}
        for view in (one, two):
            assert cause in (view.error, view.error.__cause__ if view.error else None)
        await streams.sleep(3600)
        assert streams.groups == {}
        assert len(upstream.producers) == 1
        again = await streams.add(Acking(upstream.name, "again"))
        upstream.put(7)
        await streams.quiesce()
        assert streams.groups["Acking", upstream.name].subscribers == 1
        assert values(again.events) == [7]
        assert (one.events, two.events) == ([], [])
        assert len(upstream.producers) == 2
        assert upstream.closed == 1


@pytest.mark.rule("6: no subscriber joins a group that is ending")
async def test_a_trigger_added_while_a_group_is_dying_gets_the_next_group(
    upstream: Upstream,
) -> None:
    closing, closed = anyio.Event(), anyio.Event()

    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name, "one"))
        await streams.quiesce()
        (producer,) = upstream.producers

        async def aclose() -> None:
            closing.set()
            await closed.wait()

        producer.aclose = aclose  # type: ignore[method-assign]
        upstream.fail(OSError("broker gone"))
        await streams.quiesce()
        assert closing.is_set()
        assert streams.groups == {}
        two = await streams.add(Acking(upstream.name, "two"))
        upstream.put(0)
        await streams.quiesce()
        closed.set()
        await streams.quiesce()
        assert one.error is not None
        assert (two.error, values(two.events), one.events) == (None, [0], [])


async def test_a_filter_that_ignores_the_end_of_its_stream_is_not_restarted(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "triggerer.testing.harness.RuntimeSettings", partial(RuntimeSettings, close_timeout=0.05)
    )

    class Ignoring(Acking):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            try:
                async for event in shared_stream:
                    yield TriggerEvent({"value": event})
            except GroupEnded:
                await anyio.sleep_forever()

    async with StreamHarness() as streams:
        one = await streams.add(Ignoring(upstream.name))
        await streams.quiesce()
        upstream.fail(OSError("broker gone"))
        with anyio.fail_after(10):
            while one.error is None:  # noqa: ASYNC110  (the plugin takes real time)
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        await streams.quiesce()
        assert streams.groups == {}
        assert len(upstream.producers) == 1


# Removing


async def test_removing_a_trigger_resolves_its_pulled_messages_once_they_are_persisted(
    upstream: Upstream,
) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name, "one"))
        other = await streams.add(Acking(upstream.name, "other", only=[]))
        upstream.put(0)
        await streams.quiesce()
        await streams.remove(one)
        await streams.quiesce()
        assert streams.groups["Acking", upstream.name].subscribers == 1
        assert upstream.advanced == []
        assert (one.error, other.error) == (None, None)
        await streams.persist()
        await streams.quiesce()
        assert upstream.outcomes() == {0: (2, 0, 0)}
        assert values(one.events) == [0]


async def test_removing_the_last_one_closes_the_group_when_nothing_is_outstanding(
    upstream: Upstream,
) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        await streams.remove(one)
        await streams.quiesce()
        view = streams.groups["Acking", upstream.name]
        assert (view.subscribers, view.outstanding) == (0, 1)
        assert upstream.closed == 0
        await streams.persist()
        await streams.quiesce()
        assert streams.groups == {}
        assert upstream.outcomes() == {0: (1, 0, 0)}
        assert upstream.closed == 1


async def test_a_trigger_that_has_ended_can_be_removed_twice(upstream: Upstream) -> None:
    async def act(event: Any) -> None:
        raise RuntimeError("boom")

    upstream.on_filter["one"] = act
    async with StreamHarness() as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        await streams.remove(one)
        await streams.remove(one)
        await streams.quiesce()
        assert isinstance(one.error, RuntimeError)


# Arguments


@pytest.mark.rule("8: with a grace of 0 a subscriber with a full queue fails at once")
async def test_the_queue_size_and_the_grace_are_configurable(upstream: Upstream) -> None:
    upstream.on_filter["stuck"] = forever
    async with StreamHarness(subscriber_queue_size=3) as streams:
        stuck = await streams.add(Acking(upstream.name, "stuck"))
        # One message is open, and three are in the queue.
        upstream.put(*range(4))
        await streams.quiesce()
        assert stuck.error is None
        upstream.put(4)
        await streams.quiesce()
        assert isinstance(stuck.error, SubscriberOverflow), "the default grace is none"


async def test_leaving_the_block_resolves_nothing_and_closes_once(upstream: Upstream) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
    assert upstream.advanced == []
    assert upstream.closed == 1
    assert values(one.unpersisted) == [0]


async def test_an_error_of_the_test_leaves_the_block_as_it_is(upstream: Upstream) -> None:
    async def fail() -> None:
        async with StreamHarness() as streams:
            await streams.add(Acking(upstream.name))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()


def test_the_testing_package_does_not_need_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; import triggerer.testing as t\n"
        "for name in t.__all__: getattr(t, name)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
