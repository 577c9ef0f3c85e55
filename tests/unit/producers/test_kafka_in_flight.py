"""Decisions about resolved batches, without a broker."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage
from producers.kafka.positions.position import CommittedPosition, UsedOffsets
from producers.kafka.producer import KafkaSharedStreamProducer
from producers.kafka.settings import KafkaSettings
from producers.kafka.verdict import judge
from producers.kafka.wire.cluster import Membership
from triggerer.abc import AdvanceItem, AdvanceOutcome


@dataclass
class Record:
    offset: int
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[str, bytes], ...] = ()


def make_lane(offset: int = 0, failures: int = 0) -> LaneInFlight:
    return LaneInFlight(
        TopicPartition("t", 0), Membership(1, "me"), CommittedPosition(offset, failures, "id", 1)
    )


def batch(lane: LaneInFlight, *outcomes: tuple[int, int, int], start: int = 0) -> list[AdvanceItem]:
    return [
        AdvanceItem(
            KafkaMessage(Record(start + place), lane, lane.delivery), AdvanceOutcome(*outcome)
        )
        for place, outcome in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("record", "size_bytes"),
    [
        (Record(0, value=b"12345"), 5),
        (Record(0, key=b"key", value=b"12345"), 8),
        (Record(0, value=None), 0),
        (Record(0, headers=(("name", b"123"), ("none", b""))), 11),
        (Record(0, headers=(("none", None),)), 4),  # type: ignore[arg-type]
    ],
)
def test_the_size_of_a_message_is_that_of_key_value_and_headers(
    record: Record, size_bytes: int
) -> None:
    message = KafkaMessage(record, make_lane(), 0)
    producer = KafkaSharedStreamProducer(
        ["t"], settings=KafkaSettings(bootstrap_servers="localhost:1"), group="g"
    )
    assert producer.get_size(message) == size_bytes


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20))
def test_the_position_never_passes_a_message_that_failed_or_that_nobody_saw(
    outcomes: list[tuple[int, int, int]],
) -> None:
    verdict = judge(batch(make_lane(), *outcomes))
    holding = [
        place
        for place, (acked, failed, rejected) in enumerate(outcomes)
        if failed or not (acked or rejected)
    ]
    if holding:
        assert verdict.offset == holding[0]
        assert verdict.failed is not None
        assert verdict.failed[0].offset == holding[0]
        assert len(verdict.rest) == len(outcomes) - holding[0] - 1
    else:
        assert verdict.offset == len(outcomes)
        assert verdict.failed is None


def test_messages_of_an_earlier_delivery_or_assignment_do_not_count() -> None:
    lane = make_lane()
    first = batch(lane, (1, 0, 0), (1, 0, 0))
    lane.step_back(CommittedPosition(0, 1), retries_alone=True)
    second = batch(lane, (1, 0, 0))
    verdict = judge([*first, *second])
    assert (verdict.offset, verdict.stale) == (1, 2)
    lane.close()
    over = judge(second)
    assert over.lane is None
    assert over.stale == 1


def test_a_lane_is_in_flight_until_its_position_reaches_what_it_delivered() -> None:
    lane = make_lane(5)
    assert not lane.in_flight
    lane.delivered = 8
    assert lane.in_flight
    lane.committed = lane.committed.moved(8)
    assert not lane.in_flight
    lane.delivered = 9
    lane.step_back(lane.committed.moved(8, failures=1), retries_alone=True)
    assert not lane.in_flight


def test_a_lane_that_starts_on_a_message_that_had_failed_twice_delivers_that_one_alone() -> None:
    assert make_lane(5, failures=2).retries_alone
    assert not make_lane(5, failures=1).retries_alone
    assert not make_lane(5).retries_alone


@given(
    st.integers(0, 2**62),
    st.integers(0, 1000),
    st.none() | st.text(min_size=22, max_size=22),
    st.none() | st.integers(1, 10_000),
)
def test_a_position_is_read_back_as_it_was_committed(
    offset: int, failures: int, topic_id: str | None, partitions: int | None
) -> None:
    position = CommittedPosition(offset, failures, topic_id, partitions)
    assert CommittedPosition.parse(offset, position.metadata) == position
    assert len(position.metadata) < 300


@pytest.mark.parametrize(
    "metadata", [None, "", "by hand", "[]", "3", '{"v":2,"failures":9}', '{"v":1,"failures":"x"}']
)
def test_foreign_metadata_leaves_the_offset(metadata: str | None) -> None:
    assert CommittedPosition.parse(7, metadata) == CommittedPosition(7)


def test_a_value_for_whose_decoding_there_is_no_memory_is_not_taken_for_one_that_is_no_json() -> (
    None
):
    """Otherwise the message would be rejected, and never come again."""
    code = """if True:
        import resource
        from pathlib import Path
        from tests.unit.producers.test_kafka_in_flight import KafkaMessage, Record, make_lane

        value = b'{"pad":"' + b'x' * 8_000_000 + b'"}'
        message = KafkaMessage(Record(0, value=value), make_lane(), 0)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        # Less than the parser needs; with none at all, orjson crashes.
        resource.setrlimit(resource.RLIMIT_AS, (used + 3 * len(value), resource.RLIM_INFINITY))
        try:
            message.json()
        except MemoryError:
            print("no memory")
        """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("no memory\n", "")


def test_a_message_that_is_kept_after_the_commit_has_passed_a_cut_has_its_key() -> None:
    used = (UsedOffsets(since=5, below=10, epoch=3),)
    lane = LaneInFlight(
        TopicPartition("t", 0), Membership(1, "me"), CommittedPosition(7, topic_id="id", used=used)
    )
    message = KafkaMessage(Record(7), lane, lane.delivery)
    lane.committed = lane.position(10)
    loaded = KafkaMessage.load(message.dump())
    assert lane.key(7) == loaded.lane.key(7) == "t@id/0/7+3"


def test_bytes_that_are_a_part_of_a_kept_message_or_more_than_one_are_no_message() -> None:
    lane = make_lane()
    record = Record(0, key=b"key", value=b"12345", headers=(("name", b"123"),))
    data = KafkaMessage(record, lane, lane.delivery).dump()
    assert KafkaMessage.load(data).value == b"12345"
    for other in (*(data[:size] for size in range(len(data))), data + b"x", data + data):
        with pytest.raises(ValueError, match="no dump of a Kafka message"):
            KafkaMessage.load(other)
