"""Those rules of the contract that have no test module of their own; docs/notes/rules.md lists all rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, ClassVar

import anyio
import pytest
from structlog.testing import capture_logs

from tests.unit.streams.streams import Acking, AckingSideBySide, Fast, Producer, Upstream, Watching
from tests.unit.streams.supervised import Service, Store, supervised
from triggerer.abc import (
    AckTimeout,
    AdvanceItem,
    AdvanceOutcome,
    SharedStreamProducer,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.domain.events import EventSource, HasPayload, PendingEvent
from triggerer.errors import GroupEnded
from triggerer.processes.own_lease import OwnLease
from triggerer.streams import MemberState, RuntimeSettings
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.delivery.group import Group
from triggerer.streams.pending_limit import PendingLimit
from triggerer.testing import StreamHarness
from triggerer.testing.clock import VirtualClock


def values(events: list[TriggerEvent]) -> list[Any]:
    return [event.payload["value"] for event in events]


class Keyed(Acking):
    """A trigger with a given stream key. `asked` lists the keys that the runtime asked for."""

    asked: ClassVar[list[Any]] = []

    def __init__(self, upstream: str, key: Any) -> None:
        super().__init__(upstream, repr(key))
        self.key = key

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "x.Keyed", {"upstream": self.upstream, "key": self.key}

    def shared_stream_key(self) -> Hashable:
        self.asked.append(self.key)
        return (self.upstream, self.key)


# Rule 1


@pytest.mark.rule("1: keys that compare equal count as one key")
async def test_keys_that_compare_equal_share_one_poll(upstream: Upstream) -> None:
    async with StreamHarness() as streams:
        for key in (1, 1.0, True):
            await streams.add(Keyed(upstream.name, key))
        upstream.put("x")
        await streams.quiesce()
        assert len(upstream.producers) == 1
        assert upstream.outcomes() == {"x": (3, 0, 0)}


@pytest.mark.rule("1: a trigger's key is read once, when the trigger starts")
async def test_the_key_is_read_once_when_the_trigger_starts(upstream: Upstream) -> None:
    Keyed.asked.clear()
    async with StreamHarness() as streams:
        await streams.add(Keyed(upstream.name, "k"))
        upstream.put(1, 2, 3)
        await streams.quiesce()
        await streams.sleep(1000)
        assert Keyed.asked == ["k"]


@pytest.mark.rule("1: a trigger's key is read once, when the trigger starts")
async def test_a_key_that_is_another_when_a_trigger_is_made_again_moves_it_to_no_other_stream(
    upstream: Upstream,
) -> None:
    class Moving(Keyed):
        def shared_stream_key(self) -> Hashable:
            super().shared_stream_key()
            return (self.upstream, len(self.asked))

    async def raises(event: Any) -> None:
        raise RuntimeError("boom")

    Keyed.asked.clear()
    upstream.on_filter["'k'"] = raises
    async with supervised() as service:
        kwargs = {"upstream": upstream.name, "key": "k"}
        (one,) = service.manager.add([service.spec(lambda: Moving(**kwargs), "one", kwargs)])
        upstream.put(0)
        await service.pass_time(10)
        assert len(upstream.producers) == 1
        assert list(service.manager.streams) == [one.key] == [(upstream.name, 1)]
        assert one.state is MemberState.FAILING
        assert "stream key of one was" in str(one.error)


@pytest.mark.rule("1: the poll's task is named after the key, and each group logs one line")
async def test_the_poll_is_a_task_named_after_the_key_and_each_group_logs_one_line(
    upstream: Upstream,
) -> None:
    with capture_logs() as logs:
        async with StreamHarness() as streams:
            await streams.add(Keyed(upstream.name, "a"))
            await streams.add(Keyed(upstream.name, "a"))
            await streams.add(Keyed(upstream.name, "b"))
            await streams.quiesce()
            names = [task.get_name() for task in asyncio.all_tasks()]
    keys = [(upstream.name, "a"), (upstream.name, "b")]
    polls = sorted(name for name in names if name.startswith("shared-stream-poll"))
    assert polls == [f"shared-stream-poll[{key}]" for key in keys]
    started = [log["event"] for log in logs if "group started" in log["event"]]
    assert sorted(started) == [f"Shared stream group started key={key}" for key in keys]


# Rule 2


@pytest.mark.rule("2: a filter gets the same messages in ack mode and on the fast path")
@pytest.mark.parametrize("mode", [Acking, Fast])
async def test_the_same_filter_sees_the_same_raw_events_in_both_modes(
    mode: type[Watching], upstream: Upstream
) -> None:
    seen: list[Any] = []

    async def note(event: Any) -> None:
        seen.append(event)

    upstream.on_filter["one"] = note
    raw = [1, "two", {"three": 3}, None, b"five"]
    async with StreamHarness() as streams:
        one = await streams.add(mode(upstream.name, only=["two"]))
        upstream.put(*raw)
        await streams.quiesce()
        assert seen == raw
        assert values(one.events) == ["two"]


@pytest.mark.rule("2: a subscriber resolves a message when its filter pulls the next one")
async def test_an_event_is_resolved_by_moving_on_to_the_next(upstream: Upstream) -> None:
    moves_on = upstream.hold("one")
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name, only=[]))
        upstream.put(0)
        await streams.quiesce()
        assert upstream.outcomes() == {}
        moves_on.set()
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 0, 0)}


class Threefold(Acking):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            for part in range(3):
                yield TriggerEvent({"value": (event, part)})


@pytest.mark.rule("2: a message is not resolved before all events that derive from it are durable")
async def test_an_event_is_resolved_once_everything_derived_from_it_is_persisted(
    upstream: Upstream,
) -> None:
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(Threefold(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        # The store receives all three events of the message before the filter pulls again.
        assert values(one.unpersisted) == [(0, 0), (0, 1), (0, 2)]
        for _ in range(2):
            await streams.persist(1)
            await streams.quiesce()
            assert upstream.outcomes() == {}
        await streams.persist(1)
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 0, 0)}


# Rule 3


@pytest.mark.rule("3: only the subscribers at the time of the broadcast must resolve a message")
async def test_those_that_must_resolve_an_event_are_frozen_when_it_is_broadcast(
    upstream: Upstream,
) -> None:
    moves_on = upstream.hold("first")
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name, "first"))
        upstream.put(0, 1)
        await streams.quiesce()
        # Both are outstanding while another member joins. That member has seen neither, and must not delay them.
        late = await streams.add(Acking(upstream.name, "late"))
        upstream.put(2)
        await streams.quiesce()
        assert values(late.events) == [2]
        moves_on.set()
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (1, 0, 0), 2: (2, 0, 0)}


@pytest.mark.rule("3: only the subscribers at the time of the broadcast must resolve a message")
async def test_a_leaver_still_counts_for_the_messages_that_it_resolved(upstream: Upstream) -> None:
    moves_on = upstream.hold("stays")
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name, "stays"))
        leaves = await streams.add(Acking(upstream.name, "leaves"))
        upstream.put(0)
        await streams.quiesce()
        await streams.remove(leaves)
        upstream.put(1)
        moves_on.set()
        await streams.quiesce()
        assert upstream.outcomes() == {0: (2, 0, 0), 1: (1, 0, 0)}


# Rule 4


@pytest.mark.rule(
    "4: `advance` gets the ready messages at the head of a lane, in order, with their outcomes"
)
async def test_advance_gets_a_lanes_contiguous_prefix_in_order_with_its_counts(
    upstream: Upstream,
) -> None:
    async with StreamHarness(persistence="manual") as streams:
        await streams.add(Acking(upstream.name, "stores", only=["b"]))
        await streams.add(Acking(upstream.name, "skips", only=[]))
        upstream.put("a", "b", "c", "d", lane="left")
        upstream.put("x", lane="right")
        await streams.quiesce()
        # Messages after the gap are resolved, but still wait.
        assert upstream.advanced == [("left", [("a", (2, 0, 0))]), ("right", [("x", (2, 0, 0))])]
        await streams.persist()
        await streams.quiesce()
        assert upstream.advanced[2:] == [("left", [(v, (2, 0, 0)) for v in "bcd"])]


@pytest.mark.rule(
    "4: one `advance` at a time, unless the producer declares that lanes advance side by side"
)
@pytest.mark.parametrize(
    ("mode", "at_once"),
    [
        (Acking, 1),
        pytest.param(
            AckingSideBySide,
            3,
            marks=pytest.mark.rule(
                "4: a lane's next `advance` starts only after its former one has returned"
            ),
        ),
    ],
)
async def test_lanes_advance_side_by_side_only_where_the_producer_says_so(
    mode: type[Acking], at_once: int, upstream: Upstream
) -> None:
    goes_on = anyio.Event()
    under_way: list[Hashable] = []
    most = 0

    async def on_advance(batch: Any) -> None:
        nonlocal most
        lane = batch[0].broker_payload[1]
        assert lane not in under_way, (
            "within a lane there is one call at a time, whatever is declared"
        )
        under_way.append(lane)
        most = max(most, len(under_way))
        await goes_on.wait()
        under_way.remove(lane)

    upstream.on_advance = on_advance
    async with StreamHarness() as streams:
        await streams.add(mode(upstream.name))
        for number in range(2):
            for lane in "abc":
                upstream.put(number, lane=lane)
            await streams.quiesce()
        assert len(under_way) == at_once
        goes_on.set()
        await streams.quiesce()
        assert most == at_once
        assert all(upstream.outcomes(lane) == {0: (1, 0, 0), 1: (1, 0, 0)} for lane in "abc")


class _Together(Producer):
    lanes_advance_side_by_side = True
    calls: ClassVar[list[list[Hashable]]] = []

    async def advance_lanes(self, batches: Any, report: Any = None) -> None:
        self.calls.append([batch[0].broker_payload[1] for batch in batches])
        for batch in batches:
            await self.advance(batch)


class _AckingTogether(Acking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return _Together(Upstream.known[kwargs["upstream"]])


async def test_lanes_that_are_ready_together_are_one_call_where_the_producer_takes_several(
    upstream: Upstream,
) -> None:
    _Together.calls.clear()
    goes_on = anyio.Event()
    async with StreamHarness(persistence="manual") as streams:
        await streams.add(_AckingTogether(upstream.name))
        for lane in "abc":
            upstream.put(0, lane=lane)
        await streams.quiesce()
        assert _Together.calls == []
        await streams.persist()
        await streams.quiesce()
        assert _Together.calls == [["a", "b", "c"]]

        async def on_advance(_: Any) -> None:
            await goes_on.wait()

        upstream.on_advance = on_advance
        for number in (1, 2):
            upstream.put(number, lane="a")
            await streams.quiesce()
            await streams.persist()
            await streams.quiesce()
        upstream.put(1, lane="b")
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        # In lane a the next batch waits for the previous one. Lane b does not wait.
        assert _Together.calls[1:] == [["a"], ["b"]]
        goes_on.set()
        await streams.quiesce()
        assert _Together.calls[3:] == [["a"]]
        assert upstream.outcomes("a") == dict.fromkeys(range(3), (1, 0, 0))


class _Reporting(_Together):
    """Advances all lanes at once, and reports each lane when it is done."""

    async def advance_lanes(self, batches: Any, report: Any = None) -> None:
        self.calls.append([batch[0].broker_payload[1] for batch in batches])

        async def advance(place: int, batch: Any) -> None:
            await self.advance(batch)
            report([place])
            # A repeated report changes nothing.
            report([place])

        async with anyio.create_task_group() as tasks:
            for place, batch in enumerate(batches):
                tasks.start_soon(advance, place, batch)


class _AckingReporting(Acking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return _Reporting(Upstream.known[kwargs["upstream"]])


async def test_a_slow_lane_of_a_call_holds_up_no_lane_that_is_reported(upstream: Upstream) -> None:
    _Together.calls.clear()
    goes_on = anyio.Event()

    async def on_advance(batch: Any) -> None:
        if batch[0].broker_payload[1] == "slow":
            await goes_on.wait()

    upstream.on_advance = on_advance
    lanes = ("a", "slow", "b")
    async with StreamHarness(persistence="manual") as streams:
        await streams.add(_AckingReporting(upstream.name))

        async def put(number: int) -> None:
            for lane in lanes:
                upstream.put(number, lane=lane)
            await streams.quiesce()
            await streams.persist()
            await streams.quiesce()

        await put(0)
        (group,) = streams.groups.values()
        assert group.lanes == {"slow": 1}
        await put(1)
        assert _Together.calls == [["a", "slow", "b"], ["a", "b"]]
        (group,) = streams.groups.values()
        assert group.lanes == {"slow": 2}
        assert list(upstream.outcomes("b")) == [0, 1]
        goes_on.set()
        await streams.quiesce()
        assert _Together.calls[2:] == [["slow"]]
        (group,) = streams.groups.values()
        assert group.outstanding == 0
        assert all(upstream.outcomes(lane) == {0: (1, 0, 0), 1: (1, 0, 0)} for lane in lanes)


async def test_an_advance_of_several_lanes_that_raises_ends_the_group(upstream: Upstream) -> None:
    async def on_advance(batch: Any) -> None:
        if batch[0].broker_payload[1] == "b":
            raise OSError("the broker is gone")

    upstream.on_advance = on_advance
    async with StreamHarness(persistence="manual") as streams:
        view = await streams.add(_AckingTogether(upstream.name))
        for lane in "abc":
            upstream.put(0, lane=lane)
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        assert isinstance(view.error, GroupEnded)
        assert [lane for lane, _ in upstream.advanced] == ["a"]


# Rule 5


@pytest.mark.rule(
    "5: an outcome is clean if somebody acked and nobody failed or rejected the message"
)
@pytest.mark.parametrize(
    ("counts", "is_clean"),
    [
        ((1, 0, 0), True),
        ((3, 0, 0), True),
        ((0, 0, 0), False),
        ((1, 1, 0), False),
        ((1, 0, 1), False),
        ((0, 1, 0), False),
        ((0, 0, 1), False),
        ((0, 1, 1), False),
    ],
)
def test_an_item_is_clean_when_somebody_acked_and_nobody_failed_or_rejected(
    counts: tuple[int, int, int], is_clean: bool
) -> None:
    assert AdvanceOutcome(*counts).is_clean is is_clean


def group_of(upstream: Upstream) -> Group:
    kwargs = {"upstream": upstream.name}
    return Group(
        upstream.name,
        Acking,
        kwargs,
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


@pytest.mark.rule("5: the outcome of a message without subscribers is not clean")
async def test_an_event_that_is_broadcast_to_nobody_is_not_clean(upstream: Upstream) -> None:
    told: list[AdvanceItem] = []
    is_told = anyio.Event()

    async def on_advance(batch: list[AdvanceItem]) -> None:
        told.extend(batch)
        is_told.set()

    upstream.on_advance = on_advance
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(group_of(upstream).run)
        upstream.put(0)
        with anyio.fail_after(30):
            await is_told.wait()
        tasks.cancel_scope.cancel()
    assert [(item.outcome, item.outcome.is_clean) for item in told] == [
        (AdvanceOutcome(acked=0, failed=0, rejected=0), False)
    ]


@pytest.mark.rule("5: a message that one subscriber rejects and another fails counts as failed")
async def test_one_that_rejects_an_event_and_then_fails_it_counts_as_failed(
    upstream: Upstream,
) -> None:
    fails = anyio.Event()
    moves_on = anyio.Event()

    class RejectsThenRaises(Acking):
        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            async for event in shared_stream:
                if self.name == "both":
                    reject_shared_stream_event()
                    await fails.wait()
                    raise RuntimeError("boom")
                await moves_on.wait()
                yield TriggerEvent({"value": event})

    async with StreamHarness() as streams:
        both = await streams.add(RejectsThenRaises(upstream.name, "both"))
        await streams.add(RejectsThenRaises(upstream.name, "sibling"))
        upstream.put(0)
        await streams.quiesce()
        fails.set()
        await streams.quiesce()
        assert isinstance(both.error, RuntimeError)
        moves_on.set()
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 1, 0)}


# Rule 6


class Particular(Producer):
    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        if broker_payload[0] == "has no lane":
            raise OSError("the end")
        return super().get_advance_lane(broker_payload)


class AckingParticularly(Acking):
    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return Particular(Upstream.known[kwargs["upstream"]])


class Ends:
    """The ways a group can end, each for an upstream that has advanced one event."""

    @staticmethod
    def advance_raises(upstream: Upstream) -> None:
        async def on_advance(batch: Any) -> None:
            upstream.on_advance = None
            raise OSError("the end")

        upstream.on_advance = on_advance

    @staticmethod
    def advance_is_cancelled_by_a_library(upstream: Upstream) -> None:
        async def on_advance(batch: Any) -> None:
            upstream.on_advance = None
            raise asyncio.CancelledError("the end")

        upstream.on_advance = on_advance

    @staticmethod
    def the_lane_function_raises(upstream: Upstream) -> None:
        upstream.put("has no lane")

    @staticmethod
    def open_stream_raises(upstream: Upstream) -> None:
        upstream.fail(OSError("the end"))

    @staticmethod
    def open_stream_returns(upstream: Upstream) -> None:
        upstream.end()

    @staticmethod
    def open_stream_is_cancelled_by_a_library(upstream: Upstream) -> None:
        upstream.fail(asyncio.CancelledError("the end"))


@pytest.mark.rule(
    "6: an error of the producer ends the group: all subscribers get it, and a new group starts"
)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(
            "advance_raises",
            marks=pytest.mark.rule(
                "6: after an `advance` that raised, nothing that was ready is advanced",
                "`advance` raises once, and a later call commits past the messages of the failed call",
            ),
        ),
        pytest.param(
            "advance_is_cancelled_by_a_library",
            marks=pytest.mark.rule(
                "6: a cancellation that a client library invents ends the group"
            ),
        ),
        pytest.param(
            "the_lane_function_raises",
            marks=pytest.mark.rule("6: a `get_advance_lane` that raises ends the group"),
        ),
        pytest.param(
            "open_stream_raises",
            marks=pytest.mark.rule("6: an `open_stream` that raises or returns ends the group"),
        ),
        pytest.param(
            "open_stream_returns",
            marks=pytest.mark.rule("6: an `open_stream` that raises or returns ends the group"),
        ),
        pytest.param(
            "open_stream_is_cancelled_by_a_library",
            marks=pytest.mark.rule(
                "6: a cancellation that a client library invents ends the group"
            ),
        ),
    ],
)
async def test_a_group_ends_loudly_tells_every_subscriber_and_starts_again(
    end: str, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)
    names = ("one", "two")
    async with supervised() as service:
        both = service.host(*(AckingParticularly(upstream.name, name) for name in names))
        upstream.put("before")
        await service.settle_down()
        getattr(Ends, end)(upstream)
        upstream.put("after")
        with capture_logs() as logs:
            await service.settle_down()
            # The broker learns of nothing after the last successful advance.
            assert upstream.outcomes() == {"before": (2, 0, 0)}
            assert [one.state for one in both] == [MemberState.FAILING] * 2
            assert all(isinstance(one.error, GroupEnded) for one in both)
            (said,) = [log for log in logs if log["event"] == "shared stream restarts"]
        assert said["log_level"] == "warning"
        assert said["delay_s"] == 1
        assert len(upstream.producers) == upstream.closed == 1
        await service.pass_time(1)
        assert [one.state for one in both] == [MemberState.RUNNING] * 2
        if end.startswith("advance"):
            # The group pulled "after", but the advance failed. So put "after" again, as a broker would redeliver it.
            upstream.put("after")
        await service.settle_down()
        assert upstream.outcomes() == {"before": (2, 0, 0), "after": (2, 0, 0)}
        assert len(upstream.producers) == 2


@pytest.mark.rule("6: no subscriber joins a group that is ending")
async def test_nobody_can_join_a_dying_group(upstream: Upstream) -> None:
    group = group_of(upstream)
    upstream.fail(OSError("the end"))
    with pytest.raises(GroupEnded, match="the end"):
        await group.run()
    with pytest.raises(GroupEnded, match="is ending"):
        group.subscribers.join(Acking(upstream.name), name="late", source=EventSource((), None))
    assert len(group.subscribers) == 0


async def opened_after(service: Service, upstream: Upstream) -> float:
    """Fail the group, and say how many seconds pass until the next one is there."""
    count = len(upstream.producers)
    upstream.fail(OSError("the end"))
    await service.settle_down()
    waited = 0.0
    while len(upstream.producers) == count:
        waited += 0.5
        await service.pass_time(0.5)
    return waited


@pytest.mark.rule("6: a minute of health resets the delay before the next restart of a group")
async def test_a_minute_of_health_resets_the_delay_before_a_group_is_opened_again(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)
    async with supervised() as service:
        service.host(Acking(upstream.name))
        await service.settle_down()
        assert [await opened_after(service, upstream) for _ in range(3)] == [1, 2, 4]
        await service.pass_time(59)
        assert await opened_after(service, upstream) == 8
        await service.pass_time(60)
        assert await opened_after(service, upstream) == 1


# Rule 7


@pytest.mark.rule(
    "7: a subscriber that does not resolve a message within the ack timeout of its broadcast fails"
)
async def test_the_ack_timeout_is_counted_from_the_broadcast(upstream: Upstream) -> None:
    """Message 1 waits in the queue for 50 s of the 60 s, before the filter pulls it."""
    moves_on = anyio.Event()

    async def hold(event: Any) -> None:
        if event == 0:
            await moves_on.wait()
        else:
            await anyio.sleep_forever()

    upstream.on_filter["slow"] = hold
    async with StreamHarness(ack_timeout=60) as streams:
        slow = await streams.add(Acking(upstream.name, "slow"))
        sibling = await streams.add(Acking(upstream.name, "sibling"))
        upstream.put(0, 1)
        await streams.sleep(50)
        moves_on.set()
        await streams.sleep(9)
        assert slow.error is None
        await streams.sleep(1)
        assert isinstance(slow.error, AckTimeout)
        assert upstream.outcomes() == {0: (2, 0, 0), 1: (1, 1, 0)}
        assert sibling.error is None


# Rule 10


@pytest.mark.rule("10: without an open message, `reject_shared_stream_event` only logs a warning")
async def test_rejecting_what_the_filter_has_moved_past_warns_and_does_nothing(
    upstream: Upstream,
) -> None:
    filters = copy_context()

    async def note(event: Any) -> None:
        nonlocal filters
        filters = copy_context()

    upstream.on_filter["one"] = note
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name))
        upstream.put(0)
        await streams.quiesce()
        # As a task that the filter left behind would.
        with pytest.warns(RuntimeWarning, match="no event of a shared stream is open"):
            filters.run(reject_shared_stream_event)
        upstream.put(1)
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (1, 0, 0)}


@pytest.mark.rule("10: `reject_shared_stream_event` resolves the open message as rejected, at once")
async def test_an_event_is_rejected_once_however_often_it_is_rejected(upstream: Upstream) -> None:
    moves_on = anyio.Event()

    async def act(event: Any) -> None:
        reject_shared_stream_event()
        reject_shared_stream_event()

    async def hold(event: Any) -> None:
        await moves_on.wait()

    upstream.on_filter |= {"rejects": act, "holds": hold}
    async with StreamHarness() as streams:
        await streams.add(Acking(upstream.name, "rejects", only=[]))
        await streams.add(Acking(upstream.name, "holds"))
        upstream.put(0)
        await streams.quiesce()
        moves_on.set()
        await streams.quiesce()
        assert upstream.outcomes() == {0: (1, 0, 1)}


# Rule 11


@pytest.mark.rule("a watcher works for half an hour and then silently stops")
async def test_a_filter_whose_library_cancels_itself_is_not_silently_gone(
    upstream: Upstream,
) -> None:
    async def cancels(event: Any) -> None:
        if event == "bad":
            raise asyncio.CancelledError

    upstream.on_filter["one"] = cancels
    async with supervised() as service:
        one, two = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two"))
        upstream.put("bad")
        await service.settle_down()
        assert one.state is MemberState.FAILING
        assert "nobody here asked for it" in str(one.error)
        assert two.state is MemberState.RUNNING
        await service.pass_time(2)
        assert one.state is MemberState.RUNNING
        upstream.put("good")
        await service.settle_down()
        assert upstream.outcomes() == {"bad": (1, 1, 0), "good": (2, 0, 0)}


# Rule 13


@pytest.mark.rule(
    "13: a redelivered message makes no second event, because the store has its key already"
)
async def test_the_events_of_a_message_have_its_key_and_count_from_zero(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redelivery must give each event the identity that it had before."""
    identities: list[tuple[str | None, int]] = []
    async with supervised() as service:
        submit = service.store.submit_nowait

        def note(
            event: PendingEvent,
            yielded: HasPayload,
            source: EventSource,
            key: str | None,
            ordinal: int,
        ) -> None:
            identities.append((key, ordinal))
            submit(event, yielded, source, key, ordinal)

        monkeypatch.setattr(service.store, "submit_nowait", note)
        service.host(Threefold(upstream.name))
        upstream.put("a", "b")
        await service.settle_down()
    assert identities == [(f"0/{value}", ordinal) for value in "ab" for ordinal in range(3)]


async def test_an_outage_is_told_at_growing_distances_and_its_end_once(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)
    async with supervised() as service:
        (member,) = service.host(AckingParticularly(upstream.name, "one"))
        await service.settle_down()
        with capture_logs() as logs:
            for delay in (1, 2, 4, 8, 16):
                upstream.fail(OSError("nobody there"))
                await service.settle_down()
                assert member.state is MemberState.FAILING
                await service.pass_time(delay)
            await service.pass_time(60)
    told = [log["log_level"] for log in logs if log["event"] == "shared stream restarts"]
    assert told.count("warning") == 2  # the 1st and the 4th
    assert told.count("debug") == 3
    (ended,) = [log for log in logs if log["event"] == "shared stream is read again"]
    assert ended["stream"] == member.stream_name
