"""A filter with a selector sees only the selected messages, and still resolves the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from tests.unit.streams.streams import Acking, Fast, Upstream, Watching
from tests.unit.streams.supervised import Store
from triggerer.abc import SharedStreamSelector, TriggerEvent
from triggerer.domain.events import EventSource
from triggerer.errors import PluginError
from triggerer.processes.own_lease import OwnLease
from triggerer.streams import RuntimeSettings
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.delivery.group import Group
from triggerer.streams.pending_limit import PendingLimit
from triggerer.testing import StreamHarness
from triggerer.testing.clock import VirtualClock


class Selecting(Acking):
    """Selects the values in `only`. The selector can read numbers, and nothing else."""

    reads = 0

    def shared_stream_selector(self) -> SharedStreamSelector | None:
        assert self.only is not None
        return SharedStreamSelector("number", self.read, frozenset(self.only))

    @classmethod
    def read(cls, event: Any) -> int:
        cls.reads += 1
        return int(event)


class SelectingFast(Fast):
    shared_stream_selector = Selecting.shared_stream_selector
    read = Selecting.read


def noting(upstream: Upstream, *names: str) -> dict[str, list[Any]]:
    """Return the messages that each of these filters receives."""
    seen: dict[str, list[Any]] = {name: [] for name in names}

    def record_as(name: str) -> Callable[[Any], Any]:
        async def note(event: Any) -> None:
            seen[name].append(event)

        return note

    for name in names:
        upstream.on_filter[name] = record_as(name)
    return seen


@pytest.mark.rule("2: a trigger with a selector gets only matching messages, and acks the others")
@pytest.mark.parametrize("mode", [Selecting, SelectingFast])
async def test_a_filter_is_shown_what_its_selector_names_and_the_others_everything(
    mode: type[Watching], upstream: Upstream
) -> None:
    seen = noting(upstream, "ones", "both", "none")
    async with StreamHarness() as streams:
        ones = await streams.add(mode(upstream.name, "ones", only=[1]))
        await streams.add(mode(upstream.name, "both", only=[1, 2]))
        await streams.add(mode(upstream.name, "none", only=[9]))
        upstream.put(1, 2, 3)
        await streams.quiesce()
        upstream.put(3)
        await streams.quiesce()
        upstream.put(1)
        await streams.quiesce()
        assert seen == {"ones": [1, 1], "both": [1, 2, 1], "none": []}
        assert [event.payload["value"] for event in ones.events] == [1, 1]
        (group,) = streams.groups.values()
        assert group.outstanding == 0


@pytest.mark.rule("2: a trigger with a selector gets only matching messages, and acks the others")
async def test_whom_an_event_does_not_concern_acks_it(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        await streams.add(Selecting(upstream.name, "ones", only=[1]))
        await streams.add(Selecting(upstream.name, "twos", only=[2]))
        upstream.put(0, 1, 2, 3)
        await streams.quiesce()
        assert upstream.outcomes() == dict.fromkeys(range(4), (2, 0, 0))


async def test_an_event_is_read_once_however_many_select_by_it(upstream: Upstream) -> None:
    Selecting.reads = 0
    async with StreamHarness() as streams:
        for number in range(10):
            await streams.add(Selecting(upstream.name, f"{number}", only=[number]))
        upstream.put(*range(5))
        await streams.quiesce()
        assert len(upstream.outcomes()) == 5
        assert Selecting.reads == 5


@pytest.mark.rule("2: a trigger with a selector gets only matching messages, and acks the others")
async def test_an_event_without_a_readable_value_is_offered_to_all(upstream: Upstream) -> None:
    seen = noting(upstream, "ones", "twos")
    async with StreamHarness() as streams:
        await streams.add(Selecting(upstream.name, "ones", only=[1]))
        await streams.add(Selecting(upstream.name, "twos", only=[2]))
        upstream.put("x", 1)
        await streams.quiesce()
        assert seen == {"ones": ["x", 1], "twos": ["x"]}


class Exiting(Selecting):
    @classmethod
    def read(cls, event: Any) -> int:
        raise SystemExit(3)


class Unhashable(Selecting):
    @classmethod
    def read(cls, event: Any) -> Any:
        return [event]


@pytest.mark.parametrize("kind", [Exiting, Unhashable])
async def test_a_selector_that_misbehaves_ends_nothing(
    kind: type[Selecting], upstream: Upstream
) -> None:
    seen = noting(upstream, "ones")
    async with StreamHarness() as streams:
        ones = await streams.add(kind(upstream.name, "ones", only=[1]))
        upstream.put(1, 2)
        await streams.quiesce()
        assert ones.error is None
        assert seen == {"ones": [1, 2]}
        assert upstream.outcomes() == {1: (1, 0, 0), 2: (1, 0, 0)}


class OtherFilter(Selecting):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            yield TriggerEvent({"value": -event})


async def test_a_subclass_with_a_filter_of_its_own_is_shown_everything(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        other = await streams.add(OtherFilter(upstream.name, only=[1]))
        upstream.put(1, 2)
        await streams.quiesce()
        assert [event.payload["value"] for event in other.events] == [-1, -2]


class NoSelector(Selecting):
    def shared_stream_selector(self) -> Any:
        return {"number": 1}


class RaisingSelector(Selecting):
    def shared_stream_selector(self) -> Any:
        raise ValueError("no selector today")


class ListSelector(Selecting):
    def shared_stream_selector(self) -> Any:
        return SharedStreamSelector("number", self.read, [1, [2]])  # type: ignore[arg-type]


class ValuelessSelector(Selecting):
    def shared_stream_selector(self) -> Any:
        return SharedStreamSelector("number", self.read, None)  # type: ignore[arg-type]


class UnhashableSelector(Selecting):
    def shared_stream_selector(self) -> Any:
        return SharedStreamSelector([], self.read, frozenset({1}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (NoSelector, PluginError),
        (RaisingSelector, ValueError),
        (ListSelector, PluginError),
        (ValuelessSelector, PluginError),
        (UnhashableSelector, PluginError),
    ],
)
async def test_a_trigger_whose_selector_is_none_fails_alone(
    kind: type[Selecting], error: type[Exception], upstream: Upstream
) -> None:
    class Sibling(Selecting):
        def shared_stream_key(self) -> Any:
            return ("siblings", self.upstream)

    class Broken(kind):  # type: ignore[misc,valid-type]
        shared_stream_key = Sibling.shared_stream_key

    async with StreamHarness() as streams:
        sibling = await streams.add(Sibling(upstream.name, "sibling", only=[1]))
        broken = await streams.add(Broken(upstream.name, "broken", only=[1]))
        upstream.put(1, "unreadable")
        await streams.quiesce()
        assert isinstance(broken.error, error)
        assert sibling.error is None
        assert len(sibling.events) == 1
        await streams.remove(broken)
        upstream.put(1)
        await streams.quiesce()
        assert len(sibling.events) == 2


@pytest.mark.parametrize("mode", [Selecting, SelectingFast])
async def test_a_late_pull_passes_unwanted_events_at_once(
    mode: type[Watching], upstream: Upstream
) -> None:
    gate = anyio.Event()

    class Late(mode):  # type: ignore[misc,valid-type]
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            await gate.wait()
            async for event in super().filter_shared_stream(shared_stream):
                yield event

        shared_stream_selector = mode.shared_stream_selector

    async with StreamHarness() as streams:
        late = await streams.add(Late(upstream.name, only=[1]))
        upstream.put(0, 0, 0)
        await streams.quiesce()
        (group,) = streams.groups.values()
        assert group.outstanding == 3
        gate.set()
        await streams.quiesce()
        (group,) = streams.groups.values()
        assert (group.outstanding, late.events) == (0, [])


async def test_wanted_events_wait_for_a_busy_filter_and_the_others_do_not_fail_it(
    upstream: Upstream,
) -> None:
    gate = anyio.Event()
    seen: list[Any] = []

    async def hold(event: Any) -> None:
        seen.append(event)
        await gate.wait()

    upstream.on_filter["ones"] = hold
    async with StreamHarness() as streams:
        await streams.add(Selecting(upstream.name, "ones", only=[1, 3]))
        upstream.put(0, 1, 2, 3, 4)
        await streams.quiesce()
        assert seen == [1]
        assert upstream.outcomes() == {0: (1, 0, 0)}
        gate.set()
        await streams.quiesce()
        assert seen == [1, 3]
        assert upstream.outcomes() == dict.fromkeys(range(5), (1, 0, 0))


async def test_an_idle_subscriber_neither_overflows_nor_times_out(
    upstream: Upstream,
) -> None:
    upstream.hold("busy")
    async with StreamHarness() as streams:
        idle = await streams.add(Selecting(upstream.name, "idle", only=[-1]))
        busy = await streams.add(Selecting(upstream.name, "busy", only=[0]))
        upstream.put(*range(1_000))
        await streams.quiesce()
        await streams.sleep(301)
        await streams.quiesce()
        assert busy.error is not None
        assert idle.error is None
        # Messages that come while the idle subscriber is alone do not make it fail either.
        await streams.remove(busy)
        upstream.put(*range(1_000, 6_000))
        await streams.quiesce()
        await streams.sleep(301)
        assert idle.error is None
        assert upstream.outcomes()[5_999] == (1, 0, 0)


async def test_a_late_joiner_answers_from_then_on_and_a_leaver_owes_nothing(
    upstream: Upstream,
) -> None:
    gate = upstream.hold("first")
    seen = noting(upstream, "late")
    async with StreamHarness() as streams:
        await streams.add(Selecting(upstream.name, "first", only=[0]))
        leaves = await streams.add(Selecting(upstream.name, "leaves", only=[9]))
        upstream.put(0, 1)
        await streams.quiesce()
        await streams.add(Selecting(upstream.name, "late", only=[1, 2]))
        await streams.remove(leaves)
        upstream.put(2, 1)
        gate.set()
        await streams.quiesce()
        assert seen["late"] == [2, 1]
        (advanced,) = {lane for lane, _ in upstream.advanced}
        outcomes = [outcome for _, batch in upstream.advanced for outcome in batch]
        assert advanced == 0
        assert outcomes == [(0, (2, 0, 0)), (1, (2, 0, 0)), (2, (2, 0, 0)), (1, (2, 0, 0))]


async def test_those_with_and_without_a_selector_share_a_stream(upstream: Upstream) -> None:
    class Seeing(Acking):
        def shared_stream_key(self) -> Any:
            return ("Selecting", self.upstream)

    seen = noting(upstream, "all", "twos")
    async with StreamHarness() as streams:
        await streams.add(Selecting(upstream.name, "twos", only=[2]))
        await streams.add(Seeing(upstream.name, "all", only=[]))
        upstream.put(1, 2)
        await streams.quiesce()
        upstream.put(3)
        await streams.quiesce()
        assert len(upstream.producers) == 1
        assert seen == {"all": [1, 2, 3], "twos": [2]}
        assert upstream.outcomes() == dict.fromkeys((1, 2, 3), (2, 0, 0))


async def test_a_subscriber_that_was_ended_before_its_filter_started_is_offered_nothing(
    upstream: Upstream,
) -> None:
    group = Group(
        upstream.name,
        Selecting,
        {"upstream": upstream.name, "only": [1]},
        sink=Store(),
        clock=VirtualClock(),
        lease=OwnLease.unlimited(),
        settings=RuntimeSettings(),
        pending=PendingLimit(10),
        backlogs=Backlogs(None),
        source_of=lambda watcher: None,
        name_of=str,
        now=lambda: datetime.now(UTC),
    )
    trigger = Selecting(upstream.name, only=[1])
    left = group.subscribers.join(trigger, name="left", source=EventSource((), None))
    failed = group.subscribers.join(trigger, name="failed", source=EventSource((), None))
    group.subscribers.leave(left)
    group.subscribers.fail(failed, OSError("too late"))
    await left.run()
    with pytest.raises(OSError, match="too late"):
        await failed.run()
    assert group.state.selection.tables == {}
