"""`kafka_ranges`: the events of a run become one range for each partition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer import kafka_ranges
from triggerer.errors import BrokenRanges, ConfigurationError
from triggerer.offset_ranges import ranges as ranges_module


def event(start: int, end: int, *, partition: int = 0, **extra: Any) -> Any:
    fields = {"topic": "orders", "topic_id": "A", "partition": partition, "from": start, "to": end}
    return SimpleNamespace(extra=fields | extra)


def test_adjacent_ranges_become_one_pair_for_each_partition() -> None:
    found = kafka_ranges([event(0, 10), event(3, 4, partition=2), event(10, 20), event(20, 21)])
    assert json.loads(found.starting_offsets) == {"orders": {"0": 0, "2": 3}}
    assert json.loads(found.ending_offsets) == {"orders": {"0": 21, "2": 4}}
    assert json.loads(found.assign) == {"orders": [0, 2]}
    assert (found.topics, found.offsets, bool(found)) == (["orders"], 22, True)


def test_no_events_are_no_ranges() -> None:
    found = kafka_ranges([])
    assert (bool(found), found.topics, found.offsets) == (False, [], 0)
    assert found.check() is found
    with pytest.raises(BrokenRanges, match="no range to read"):
        found.read(None)


@pytest.mark.parametrize(
    "events",
    [
        [event(0, 10), event(12, 20)],
        [event(12, 20, deleted=2)],
        [event(0, 10), event(12, 20, deleted=2)],
    ],
)
def test_a_gap_is_named_unless_it_is_allowed(events: list[Any]) -> None:
    with pytest.raises(BrokenRanges, match=r"offsets orders\[0\] 10 to 11") as caught:
        kafka_ranges(events)
    assert "allow_gaps=True" in str(caught.value)
    allowed = kafka_ranges(events, allow_gaps=True)
    assert [str(gap) for gap in allowed.gaps] == ["orders[0] 10 to 11"]
    assert json.loads(allowed.ending_offsets) == {"orders": {"0": 20}}


def test_two_events_with_common_offsets_are_an_error_even_if_gaps_are_allowed() -> None:
    with pytest.raises(BrokenRanges, match="in common: 0 to 9, and 5 to 11"):
        kafka_ranges([event(0, 10), event(5, 12)], allow_gaps=True)


def test_a_range_after_a_cut_replaces_the_lost_end() -> None:
    found = kafka_ranges([event(0, 6), event(6, 10), event(5, 8, rewound_from=10), event(8, 20)])
    assert json.loads(found.starting_offsets) == {"orders": {"0": 0}}
    assert json.loads(found.ending_offsets) == {"orders": {"0": 20}}


def test_events_of_two_incarnations_say_which_one_exists() -> None:
    with pytest.raises(BrokenRanges, match="deleted and created again") as caught:
        kafka_ranges([event(0, 10), event(0, 5, topic_id="B", partition=1)])
    assert "extra['topic_id'] is 'B'" in str(caught.value)


def test_a_topic_whose_brokers_begin_to_report_its_id_is_still_one_topic() -> None:
    found = kafka_ranges([event(0, 10, topic_id=None), event(10, 20, topic_id="A")])
    assert [(one.topic_id, one.start, one.end) for one in found.ranges] == [("A", 0, 20)]
    with pytest.raises(BrokenRanges, match="deleted and created again"):
        kafka_ranges([event(0, 5, topic_id=one) for one in (None, "A", "B")])


@pytest.mark.parametrize("extra", [{}, {"value": 1}, {"topic": "orders", "from": 1}])
def test_an_event_of_another_trigger_is_named(extra: Any) -> None:
    with pytest.raises(BrokenRanges, match="KafkaRangeTrigger"):
        kafka_ranges([SimpleNamespace(extra=extra)])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(1, 9), min_size=1, max_size=6)),
        unique_by=lambda one: one[0],
    ),
    st.randoms(use_true_random=False),
)
def test_however_a_range_is_split_and_mixed_it_is_merged_again(
    partitions: list[tuple[int, list[int]]], random: Any
) -> None:
    events = []
    for partition, sizes in partitions:
        at = partition
        for size in sizes:
            events.append(event(at, at + size, partition=partition))
            at += size
    random.shuffle(events)
    found = kafka_ranges(events)
    assert {one.partition: (one.start, one.end) for one in found.ranges} == {
        partition: (partition, partition + sum(sizes)) for partition, sizes in partitions
    }
    assert found.offsets == sum(sum(sizes) for _, sizes in partitions)
    if len(events) > 1:
        left_out = random.choice(events)
        rest = [one for one in events if one is not left_out]
        allowed = kafka_ranges(rest, allow_gaps=True)
        covered = allowed.offsets - sum(gap.end - gap.start for gap in allowed.gaps)
        assert covered == sum(one.extra["to"] - one.extra["from"] for one in rest)


class Logs:
    """The producer's package, as far as `check` uses it."""

    def __init__(self, **bounds: tuple[int, int]) -> None:
        self.topic_id: str | None = "A"
        self.bounds = {
            int(name[1:]): SimpleNamespace(first=a, end=b) for name, (a, b) in bounds.items()
        }

    def read_logs(self, topics: Sequence[str], **_: Any) -> Any:
        return dict.fromkeys(topics, (self.topic_id, self.bounds))

    def servers_of(self, connection: str) -> tuple[str, str]:
        return "host:9092", "SASL_SSL"


def checked(monkeypatch: pytest.MonkeyPatch, logs: Logs, *events: Any, **arguments: Any) -> Any:
    monkeypatch.setattr(ranges_module, "_kafka", lambda: logs)
    return kafka_ranges(events).check(**arguments)


def test_ranges_that_the_logs_have_pass_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(
        monkeypatch, Logs(p0=(0, 20), p1=(5, 8)), event(0, 20), event(5, 6, partition=1)
    )
    assert found.offsets == 21


@pytest.mark.parametrize(
    ("logs", "said", "left"),
    [
        (Logs(p0=(15, 20)), r"retention has deleted 5 of 10 offsets", (15, 20)),
        (Logs(p0=(25, 30)), r"retention has deleted 10 of 10 offsets", None),
        (Logs(p0=(0, 14)), r"the log ends at 14", (10, 14)),
        (Logs(p0=(0, 3)), r"the log ends at 3", None),
        (Logs(), r"no such partition", None),
    ],
)
def test_offsets_that_are_gone_fail_the_check_or_are_left_out(
    monkeypatch: pytest.MonkeyPatch, logs: Logs, said: str, left: tuple[int, int] | None
) -> None:
    with pytest.raises(BrokenRanges, match=said) as caught:
        checked(monkeypatch, logs, event(10, 20))
    assert 'on_data_loss="skip"' in str(caught.value)
    found = checked(monkeypatch, logs, event(10, 20), on_data_loss="skip")
    assert [(one.start, one.end) for one in found.ranges] == ([left] if left else [])


def test_a_topic_that_was_created_again_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(p0=(0, 100))
    logs.topic_id = "B"
    with pytest.raises(BrokenRanges, match="was deleted and created again"):
        checked(monkeypatch, logs, event(10, 20))


def test_an_encrypted_connection_needs_sparks_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_module, "_kafka", lambda: Logs(p0=(0, 100)))
    with pytest.raises(ConfigurationError, match="SASL_SSL") as caught:
        kafka_ranges([event(10, 20)]).read(None)
    assert "kafka.security.protocol" in str(caught.value)
