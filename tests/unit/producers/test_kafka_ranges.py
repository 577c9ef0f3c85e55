"""Ranges of offsets: planned from a bookmark and the ends of logs, without a broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from producers.kafka.ranges import log_ends
from producers.kafka.ranges.bookmark import RangeBookmark
from producers.kafka.ranges.log_bounds import Bounds, read_logs
from producers.kafka.ranges.planning import OffsetRange, PartitionView, plan
from producers.kafka.ranges.watching import new_ranges
from producers.kafka.settings import KafkaSettings
from producers.kafka.wire.cluster import TopicDescription
from triggerer.errors import BrokerUnavailable, DagError
from triggerer.testing import StreamHarness
from watchers.kafka import KafkaRangeTrigger


def spans(ranges: Any) -> list[tuple[int, int, int]]:
    return [(one.partition, one.start, one.end) for one in ranges]


def view(end: int, *, first: int = 0, partition: int = 0, **others: Any) -> PartitionView:
    return PartitionView("orders", others.pop("topic_id", "A"), partition, first, end, **others)


def after(*views: PartitionView, **arguments: Any) -> RangeBookmark:
    return plan(RangeBookmark(), views, **arguments).bookmark


def test_the_first_look_covers_everything_and_the_next_one_only_what_is_new() -> None:
    first = plan(RangeBookmark(), [view(10), view(0, partition=1)])
    assert spans(first.ranges) == [(0, 0, 10)]
    second = plan(first.bookmark, [view(12), view(3, partition=1)])
    assert spans(second.ranges) == [(0, 10, 12), (1, 0, 3)]
    assert plan(second.bookmark, [view(12), view(3, partition=1)]).bookmark == second.bookmark


def test_a_start_holds_for_a_new_topic_but_not_for_a_partition_that_is_added_later() -> None:
    first = plan(RangeBookmark(), [view(10, start=10)])
    assert spans(first.ranges) == []
    second = plan(first.bookmark, [view(11, start=11), view(4, partition=1, start=4)])
    assert spans(second.ranges) == [(0, 10, 11), (1, 0, 4)]


def test_a_backlog_is_split_and_the_partitions_take_turns() -> None:
    views = [view(1_000_000), view(25, partition=1)]
    found = plan(RangeBookmark(), views, max_offsets=10, most_ranges=5)
    assert spans(found.ranges) == [(0, 0, 10), (1, 0, 10), (0, 10, 20), (1, 10, 20), (0, 20, 30)]
    assert not found.is_complete
    rest = plan(found.bookmark, views, max_offsets=400_000, most_ranges=5)
    assert spans(rest.ranges)[:2] == [(0, 30, 400_030), (1, 20, 25)]
    assert rest.is_complete


def test_offsets_that_retention_deleted_are_told_once_and_left_out() -> None:
    found = plan(after(view(10)), [view(100, first=60)])
    (made,) = found.ranges
    assert (made.start, made.end, made.deleted) == (60, 100, 50)
    assert made.extra["deleted"] == 50
    assert "50 offsets 10 to 59" in found.warnings[0]
    assert plan(found.bookmark, [view(100, first=60)]).warnings == []


def test_deleted_offsets_wait_for_the_next_message_to_be_told() -> None:
    before = after(view(10))
    idle = plan(before, [view(20, first=20)])
    assert (list(idle.ranges), list(idle.warnings)) == ([], [])
    (made,) = plan(idle.bookmark, [view(21, first=20)]).ranges
    assert (made.start, made.deleted) == (20, 10)


def test_a_recreated_topic_is_read_from_its_beginning_under_other_keys() -> None:
    before = plan(RangeBookmark(), [view(10)])
    found = plan(before.bookmark, [view(30, topic_id="B")])
    assert spans(found.ranges) == [(0, 0, 30)]
    assert "deleted and created again" in found.warnings[0]
    assert found.ranges[0].key != before.ranges[0].key


def test_a_log_that_was_cut_continues_at_the_cut_and_says_so() -> None:
    before = plan(RangeBookmark(), [view(5, epoch=1)])
    more = plan(before.bookmark, [view(10, epoch=1)])
    found = plan(more.bookmark, [view(12, epoch=2, cut_at=5)])
    (made,) = found.ranges
    assert (made.start, made.end, made.rewound_from) == (5, 12, 10)
    assert made.key not in {one.key for one in (*before.ranges, *more.ranges)}
    assert "cut at 5" in found.warnings[0]
    (later,) = plan(found.bookmark, [view(14, epoch=2)]).ranges
    assert "rewound_from" not in later.extra
    assert later.key == "orders@A/0/12"


def test_a_cut_that_nothing_follows_yet_is_remembered_over_a_restart() -> None:
    stored = after(view(10, epoch=1))
    idle = plan(stored, [view(5, epoch=2, cut_at=5)])
    assert list(idle.ranges) == []
    restarted = RangeBookmark.parse(json.loads(json.dumps(idle.bookmark.to_json())))
    (made,) = plan(restarted, [view(6, epoch=2)]).ranges
    assert (made.start, made.rewound_from, made.key) == (5, 10, "orders@A/0/5#1")


@dataclass
class Log:
    """One partition: which messages it has, and which of them were in an event."""

    incarnation: int = 0
    epoch: int = 0
    first: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)
    """(unique message, epoch of its leader), by offset."""


class World:
    """A topic whose log is written, deleted, cut and recreated, and a watcher that may lose its memory."""

    def __init__(self) -> None:
        self.logs = [Log()]
        self.written = 0
        self.stored: Any = None
        self.covered: list[int] = []
        self.keys: list[str] = []
        self.told_deleted = 0

    def write(self, log: Log, count: int) -> None:
        for _ in range(count):
            self.written += 1
            log.entries.append((self.written, log.epoch))

    def view(self, number: int, bookmark: RangeBookmark, read_up_to: int) -> PartitionView:
        log, topic_id = self.logs[number], f"id{self.logs[0].incarnation}"
        end = max(len(log.entries) - read_up_to, log.first)
        kept = None
        place = bookmark.of_partition("t", topic_id, number)
        if place is not None and (place.epoch != log.epoch or end < place.to):
            assert place.epoch is not None
            newer = [o for o, (_, epoch) in enumerate(log.entries) if epoch > place.epoch]
            kept = min([*newer, len(log.entries)])
            kept = kept if kept < place.to else None
        return PartitionView("t", topic_id, number, log.first, end, log.epoch, 0, kept)

    def look(self, max_offsets: int | None, *, unstable: int, forget: bool) -> None:
        bookmark = RangeBookmark.parse(self.stored)
        views = [self.view(n, bookmark, unstable) for n in range(len(self.logs))]
        found = plan(bookmark, views, max_offsets=max_offsets, most_ranges=3)
        if forget:
            return  # A crash before the commit.
        self.stored = json.loads(json.dumps(found.bookmark.to_json()))
        for one in found.ranges:
            self.take(one)

    def take(self, one: OffsetRange) -> None:
        assert one.start < one.end
        log = self.logs[one.partition]
        assert log.first <= one.start
        assert one.end <= len(log.entries)
        self.covered += [message for message, _ in log.entries[one.start : one.end]]
        self.keys.append(one.key)
        self.told_deleted += one.deleted


ops = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.just("delete"), st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("cut"), st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("lead"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("add"), st.just(0), st.just(0)),
    st.tuples(st.just("recreate"), st.just(0), st.just(0)),
    st.tuples(st.just("look"), st.sampled_from([None, 1, 2, 5]), st.integers(0, 2)),
    st.tuples(st.just("crash"), st.sampled_from([None, 1, 2, 5]), st.integers(0, 2)),
)


@given(st.lists(ops, max_size=40))
def test_each_message_is_in_exactly_one_range_whatever_happens_to_the_log(steps: list[Any]) -> None:
    world = World()
    for kind, which, number in steps:
        log = world.logs[(which or 0) % len(world.logs)]
        match kind:
            case "write":
                world.write(log, number)
            case "delete":
                log.first = max(log.first, min(number, len(log.entries)))
            case "cut":
                # A cut removes nothing before `first`, which is where retention has deleted.
                del log.entries[max(number, log.first) :]
                log.epoch += 1
            case "lead":
                log.epoch += 1
            case "add" if len(world.logs) < 4:
                world.logs.append(Log(world.logs[0].incarnation))
            case "recreate":
                world.logs = [Log(world.logs[0].incarnation + 1)]
            case "look" | "crash":
                world.look(which, unstable=number, forget=kind == "crash")
    for _ in range(200):
        before = world.stored
        world.look(None, unstable=0, forget=False)
        if world.stored == before:
            break
    assert len(world.covered) == len(set(world.covered)), "a message is in two ranges"
    present = {m for log in world.logs for m, _ in log.entries[log.first :]}
    assert present <= set(world.covered), "a message is in no range"
    assert len(world.keys) == len(set(world.keys)), "two events have one key"


class FakeCluster:
    """Stands in for `LogEnds`: returns `views`, but raises an error in the next `failures` calls."""

    def __init__(self, *views: PartitionView) -> None:
        self.views = list(views)
        self.looks = 0
        self.failures = 0

    async def look_up(self, bookmark: RangeBookmark) -> list[PartitionView]:
        await anyio.lowlevel.checkpoint()
        self.looks += 1
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailable("the brokers are away")
        return self.views

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
        @asynccontextmanager
        async def open_fake(*_: Any) -> AsyncIterator[FakeCluster]:
            yield self

        monkeypatch.setattr(log_ends, "open_log_ends", open_fake)
        monkeypatch.setenv("TRIGGERER__CONNECTIONS__KAFKA__BOOTSTRAP_SERVERS", "localhost:1")
        return self


async def some_looks(cluster: FakeCluster, count: int = 2) -> None:
    seen = cluster.looks
    with anyio.fail_after(5):
        while cluster.looks < seen + count:  # noqa: ASYNC110  (the double tells nobody)
            await anyio.sleep(0.01)


async def test_a_watcher_gets_one_event_for_each_partition_and_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster(view(10), view(3, partition=1)).install(monkeypatch)
    async with StreamHarness() as streams:
        one = await streams.add(KafkaRangeTrigger("orders", interval=0.1))
        await some_looks(cluster)
        cluster.views = [view(12), view(3, partition=1)]
        await some_looks(cluster)
        assert [event.payload for event in one.events] == [
            {"topic": "orders", "topic_id": "A", "partition": 0, "from": 0, "to": 10},
            {"topic": "orders", "topic_id": "A", "partition": 1, "from": 0, "to": 3},
            {"topic": "orders", "topic_id": "A", "partition": 0, "from": 10, "to": 12},
        ]
        assert [event.key for event in one.events] == [
            "orders@A/0/0",
            "orders@A/1/0",
            "orders@A/0/10",
        ]


async def test_two_watchers_of_one_topic_each_get_every_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster(view(10)).install(monkeypatch)
    async with StreamHarness() as streams:
        one = await streams.add(KafkaRangeTrigger("orders", interval=0.1))
        await some_looks(cluster)
        other = await streams.add(KafkaRangeTrigger("orders", interval=0.1))
        cluster.views = [view(15)]
        await some_looks(cluster, 4)
        assert [e.payload["to"] for e in one.events] == [10, 15]
        assert [(e.payload["from"], e.payload["to"]) for e in other.events] == [(0, 15)]


async def test_ranges_that_the_store_refuses_are_made_again_from_the_stored_bookmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster(view(10)).install(monkeypatch)
    async with StreamHarness(persistence="manual") as streams:
        one = await streams.add(KafkaRangeTrigger("orders", interval=0.1))
        await some_looks(cluster, 1)
        await streams.quiesce()
        await streams.refuse()
        await streams.quiesce()
        assert "refused" in str(one.error)
        again = await streams.add(KafkaRangeTrigger("orders", interval=0.1))
        await some_looks(cluster, 1)
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        assert [e.payload["to"] for e in again.events] == [10]


class ElectingCluster:
    """A cluster that elects a new leader of one partition between two descriptions of the topic."""

    def __init__(self, elected: int | None) -> None:
        self.elected = elected
        self.described = 0

    async def describe(self, names: list[str], **_: Any) -> dict[str, TopicDescription]:
        epochs = [4, 4]
        if self.described and self.elected is not None:
            epochs[self.elected] += 1
        self.described += 1
        return {name: TopicDescription(name, "A", 2, None, tuple(epochs)) for name in names}

    async def know_leaders(self, topics: list[str]) -> None:
        pass

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> Any:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> Any:
        return dict.fromkeys(partitions, 7)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def connected(*_: Any) -> None:
            pass

        monkeypatch.setattr(log_ends, "Cluster", lambda *_, **__: self)
        monkeypatch.setattr(log_ends, "AIOKafkaConsumer", lambda **_: self)
        monkeypatch.setattr(log_ends, "connect", connected)
        monkeypatch.setattr(log_ends, "stop_consumer", connected)


def test_the_bounds_of_logs_have_every_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    ElectingCluster(None).install(monkeypatch)
    logs = read_logs(["orders"], connection="kafka", bootstrap_servers="localhost:1")
    assert logs == {"orders": ("A", {0: Bounds(0, 7), 1: Bounds(0, 7)})}


def test_a_partition_that_elects_a_leader_meanwhile_is_not_taken_for_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ElectingCluster(1).install(monkeypatch)
    with pytest.raises(BrokerUnavailable, match=r"^orders\[1\] at localhost:1 changed during"):
        read_logs(["orders"], connection="kafka", bootstrap_servers="localhost:1")


async def test_the_guarantee_of_a_pattern_says_that_later_topics_were_not_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look_up(facts: Any, _: Any) -> None:
        facts.names, facts.scope = ["orders-eu"], " (only the 1 topics that match now)"

    monkeypatch.setattr("producers.kafka.guarantees._TopicFacts.look_up", look_up)
    monkeypatch.setenv("TRIGGERER__CONNECTIONS__KAFKA__BOOTSTRAP_SERVERS", "localhost:1")
    facts = await KafkaRangeTrigger("^orders-.*").describe_delivery(ask=True)
    assert facts.because == (
        "the position is stored in the transaction of the events (only the 1 topics that match now)"
    )


async def test_an_absent_cluster_is_the_watchers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(view(10)).install(monkeypatch)
    cluster.failures = 1
    async with StreamHarness() as streams:
        one = await streams.add(KafkaRangeTrigger("orders", interval=0.1))
        await some_looks(cluster, 1)
        await streams.quiesce()
        assert "the brokers are away" in str(one.error)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"match": {"amount": 1}}, "reads no message, so it has no `match`"),
        ({"decode": "json"}, "reads no message, so it has no `decode`"),
        ({"group_id": "g"}, "has no consumer group"),
        ({"interval": 0}, "interval must be"),
        ({"interval": "10"}, "interval must be"),
        ({"interval": float("nan")}, "interval must be"),
        ({"max_offsets": 0}, "max_offsets must be"),
        ({"max_offsets": 1.5}, "max_offsets must be"),
        ({"start": "noon"}, "start is 'noon'"),
    ],
)
def test_arguments_that_ranges_cannot_have_are_refused(arguments: Any, said: str) -> None:
    with pytest.raises(DagError, match=said):
        KafkaRangeTrigger("orders", **arguments)


def test_an_unknown_argument_is_a_mistake_of_the_call() -> None:
    with pytest.raises(TypeError, match="'colour'"):
        KafkaRangeTrigger("orders", colour="red")


class GrowingCluster:
    """A cluster whose topics have one partition each. A test creates topics, writes messages and elects leaders."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self.epochs: Counter[str] = Counter()
        self.before_second_description: Callable[[], object] = lambda: None
        """Called once, between the two descriptions of the first look-up that finds a topic."""
        self.descriptions = 0

    async def topics(self) -> set[str]:
        return set(self.ends)

    async def describe(self, names: list[str], **_: Any) -> dict[str, TopicDescription]:
        self.descriptions += 1
        if self.descriptions == 2:
            self.before_second_description()
        return {
            name: TopicDescription(name, "A", 1, None, (self.epochs[name],))
            for name in names
            if name in self.ends
        }

    async def know_leaders(self, topics: list[str]) -> None:
        pass

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> Any:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> Any:
        return {one: self.ends[one.topic] for one in partitions}

    async def epoch_ends(self, asked: dict[TopicPartition, int]) -> Any:
        return {one: self.ends[one.topic] for one in asked}


class RangesOfPattern:
    """A watcher of a pattern with `start="latest"`, which can be stopped and started again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = GrowingCluster()
        self.stored: Any = None

        async def nothing(*_: Any) -> None:
            pass

        monkeypatch.setattr(log_ends, "Cluster", lambda *_, **__: self.cluster)
        monkeypatch.setattr(log_ends, "AIOKafkaConsumer", lambda **_: self.cluster)
        monkeypatch.setattr(log_ends, "connect", nothing)
        monkeypatch.setattr(log_ends, "stop_consumer", nothing)

    @asynccontextmanager
    async def start(self) -> AsyncIterator[AsyncIterator[list[tuple[str, int, int]]]]:
        """Yield an iterator, whose items are the ranges of one look-up that changed the bookmark.

        A range is a topic, the first offset and the end.
        """
        settings = KafkaSettings.from_mapping("test", {"bootstrap_servers": "localhost:1"})

        async def found() -> AsyncIterator[list[tuple[str, int, int]]]:
            async for ranges, bookmark in new_ranges(
                ends, self.stored, interval_s=0.0, max_offsets=None
            ):
                self.stored = json.loads(json.dumps(bookmark))
                yield [(one.topic, one.start, one.end) for one in ranges]

        async with log_ends.open_log_ends(settings, ["^orders-.*"], "latest") as ends:
            with anyio.fail_after(5):
                yield found()


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_first_topic_of_a_pattern_is_read_from_its_beginning_if_it_is_found_later(
    monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    watcher = RangesOfPattern(monkeypatch)
    async with watcher.start() as found:
        assert await anext(found) == []
        if not restarts:
            watcher.cluster.ends["orders-a"] = 3
            assert await anext(found) == [("orders-a", 0, 3)]
    if restarts:
        watcher.cluster.ends["orders-a"] = 3
        async with watcher.start() as found:
            assert await anext(found) == [("orders-a", 0, 3)]


async def test_a_start_holds_for_a_topic_whose_leader_changes_during_the_first_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = RangesOfPattern(monkeypatch)
    cluster = watcher.cluster
    cluster.ends = {"orders-a": 7, "orders-b": 7}
    cluster.before_second_description = lambda: cluster.epochs.update(["orders-a"])
    async with watcher.start() as found:
        assert await anext(found) == []
        cluster.ends = {"orders-a": 9, "orders-b": 7, "orders-c": 2}
        assert await anext(found) == [("orders-a", 7, 9)]
        assert await anext(found) == [("orders-c", 0, 2)]


async def test_a_topic_of_a_pattern_may_be_deleted_during_the_first_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = RangesOfPattern(monkeypatch)
    cluster = watcher.cluster
    cluster.ends = {"orders-a": 7}
    cluster.before_second_description = cluster.ends.clear
    async with watcher.start() as found:
        assert await anext(found) == []
        cluster.ends = {"orders-a": 2}
        assert await anext(found) == [("orders-a", 0, 2)]
