"""Leaders' epochs, and the lane that takes over when a log was cut. No broker."""

from __future__ import annotations

import struct

import pytest
from aiokafka import TopicPartition

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.positions.leader_epochs import LeaderEpochs
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.cluster import Membership
from producers.kafka.wire.fetch_request import DivergingEpoch, diverging_epoch


def batch(base: int, epoch: int, format_: int = 2, size: int = 20) -> bytes:
    return struct.pack(">qiib", base, size, epoch, format_) + bytes(size - 5)


def lane_at(committed: CommittedPosition, *, delivered: int) -> LaneInFlight:
    lane = LaneInFlight(TopicPartition("t", 0), Membership(1, "me"), committed)
    lane.delivered = delivered
    return lane


def test_the_epoch_before_an_offset_is_that_of_the_batch_that_ends_there() -> None:
    epochs = LeaderEpochs(10, 3)
    epochs.learn(batch(10, 3) + batch(12, 4) + batch(15, 4) + batch(20, 7) + batch(25, 9)[:15])
    assert [epochs.before(offset) for offset in (9, 10, 12, 13, 20, 21, 99)] == [
        None, 3, 3, 4, 4, 7, 7,
    ]  # fmt: skip
    epochs.cut(5)
    assert epochs.before(99) == 4


def test_batches_of_an_old_format_have_no_epoch() -> None:
    epochs = LeaderEpochs(0, None)
    epochs.learn(batch(0, 1234, format_=1))
    epochs.learn(None)
    assert epochs.before(99) is None


def test_an_answer_without_the_field_says_nothing_of_a_cut() -> None:
    assert diverging_epoch({}) is None
    assert diverging_epoch({0: struct.pack(">iqb", 4, 17, 0)}) == DivergingEpoch(4, 17)


def test_a_lane_goes_on_at_the_cut_and_new_messages_there_have_other_keys() -> None:
    lane = lane_at(CommittedPosition(20, topic_id="id", epoch=3), delivered=20)
    after = lane.after_cut(DivergingEpoch(2, 15), 20, begin=0)
    assert (after.committed.offset, after.delivered) == (15, 15)
    assert [lane.key(offset) for offset in (14, 15)] == ["t@id/0/14", "t@id/0/15"]
    assert [after.key(offset) for offset in (14, 15, 25)] == [
        "t@id/0/14",
        "t@id/0/15+3",
        "t@id/0/25+3",
    ]
    assert after.key(10_000_000) == "t@id/0/10000000"


def test_a_message_in_flight_before_the_cut_is_delivered_again_with_its_key_and_its_failures() -> (
    None
):
    lane = lane_at(CommittedPosition(10, failures=2, topic_id="id", epoch=3), delivered=20)
    after = lane.after_cut(DivergingEpoch(2, 15), 20, begin=0)
    assert (after.committed.offset, after.committed.failures, after.retries_alone) == (10, 2, True)
    assert [after.key(offset) for offset in (10, 14, 15)] == [
        "t@id/0/10",
        "t@id/0/14",
        "t@id/0/15+3",
    ]


def test_a_cut_below_the_logs_beginning_goes_on_there() -> None:
    lane = lane_at(CommittedPosition(10, topic_id="id", epoch=3), delivered=20)
    assert lane.after_cut(DivergingEpoch(2, 5), 20, begin=8).committed.offset == 8


def test_the_position_after_a_cut_survives_a_restart_and_a_second_cut() -> None:
    lane = lane_at(CommittedPosition(20, topic_id="id", epoch=3), delivered=20)
    position = lane.after_cut(DivergingEpoch(2, 15), 20, begin=0).committed
    again = lane_at(CommittedPosition.parse(position.offset, position.metadata), delivered=15)
    assert again.committed == position
    again.epochs.learn(batch(15, 4))
    again.delivered = 30
    again.committed = again.position(30)
    second = again.after_cut(DivergingEpoch(4, 25), 30, begin=0)
    keys = [second.key(offset) for offset in (14, 15, 24, 25)]
    assert keys == ["t@id/0/14", "t@id/0/15+3", "t@id/0/24+3", "t@id/0/25+4"]
    assert len(second.committed.metadata) < 200


def test_what_is_beyond_all_that_may_have_been_read_has_its_plain_key_and_metadata_again() -> None:
    lane = lane_at(CommittedPosition(20, topic_id="id", epoch=3), delivered=20)
    after = lane.after_cut(DivergingEpoch(2, 15), 20, begin=0)
    assert after.position(1_000_000).used == ()
    assert after.position(21).used == after.committed.used


@pytest.mark.parametrize("metadata", ['{"v":1,"topic":"id","partitions":1}', '{"v":1,"used":7}'])
def test_a_commit_of_a_release_before_has_neither_an_epoch_nor_a_cut(metadata: str) -> None:
    position = CommittedPosition.parse(5, metadata)
    assert (position.epoch, position.used) == (None, ())
