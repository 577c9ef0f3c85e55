"""Our types for Kafka's fetch requests and responses, which pack several fields with one call of `struct`.

aiokafka's own types, which pack field by field, must produce the same bytes and the same values.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from producers.kafka.wire.fetch_request import (
    FetchByIdRequest_v13,
    FetchByIdResponse,
    PartitionAnswer,
    WantedPartition,
)

_ANSWER = Schema(
    ("partition", Int32),
    ("error_code", Int16),
    ("highwater_offset", Int64),
    ("last_stable_offset", Int64),
    ("log_start_offset", Int64),
    (
        "aborted_transactions",
        CompactArray(("producer_id", Int64), ("first_offset", Int64), ("tags", TaggedFields)),
    ),
    ("preferred_read_replica", Int32),
    ("message_set", CompactBytes),
    ("tags", TaggedFields),
)
_WANTED = Schema(
    ("partition", Int32),
    ("current_leader_epoch", Int32),
    ("fetch_offset", Int64),
    ("last_fetched_epoch", Int32),
    ("log_start_offset", Int64),
    ("max_bytes", Int32),
    ("tags", TaggedFields),
)
_TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize(
    "answer",
    [
        (0, 0, 0, 0, 0, None, -1, None, {}),
        (7, 1, 2**40, 2**40 - 1, 5, [], 3, b"", {}),
        (7, 0, 9, 9, 0, [], -1, b"\x00", {}),
        (7, 0, 9, 9, 0, [(0, 0, {})], 0, None, {}),
        (2**31 - 1, -1, -1, -1, -1, [(2**50, 17, {}), (4, 18, {})], -1, b"x" * 300, {}),
    ],
)
def test_an_answer_is_read_as_field_by_field(answer: tuple[Any, ...]) -> None:
    encoded = _ANSWER.encode(answer)
    data = BytesIO(encoded + b"rest")
    assert PartitionAnswer.decode(data) == _ANSWER.decode(BytesIO(encoded)) == answer
    assert data.read() == b"rest"
    assert PartitionAnswer.encode(answer) == encoded


def test_what_a_broker_says_of_a_cut_log_is_read() -> None:
    head = _ANSWER.encode((1, 0, 9, 9, 0, None, -1, b"", {}))[:-1]
    data = BytesIO(head + b"\x01\x00\x0d" + b"e" * 13)
    assert PartitionAnswer.decode(data)[-1] == {0: b"e" * 13}


def test_an_answer_that_is_cut_short_is_an_error() -> None:
    encoded = _ANSWER.encode((1, 0, 9, 9, 0, None, -1, b"batches", {}))
    for length in range(len(encoded) - 1):
        with pytest.raises(Exception, match=r"requires a buffer|Buffer underrun|unpack"):
            PartitionAnswer.decode(BytesIO(encoded[:length]))


@pytest.mark.parametrize(("epoch", "sent"), [(None, -1), (0, 0), (12, 12)])
def test_a_partition_is_asked_for_as_field_by_field(epoch: int | None, sent: int) -> None:
    wanted = WantedPartition(3, 2**40, 1_048_576, epoch)
    request = FetchByIdRequest_v13(
        -1, 500, 1, 2**20, 0, 0, -1, [(_TOPIC_ID, [wanted], {})], [], "", {}
    ).encode()
    fields = _WANTED.encode((3, -1, 2**40, sent, -1, 1_048_576, {}))
    assert _TOPIC_ID + b"\x02" + fields + b"\x00" in request
    assert FetchByIdRequest_v13.decode(request).topics == [(_TOPIC_ID, [wanted], {})]


def test_a_response_has_its_topics_with_their_partitions() -> None:
    answer = (7, 0, 10, 10, 5, None, -1, b"batches", {})
    response = FetchByIdResponse(0, 0, 0, [(_TOPIC_ID, [answer, answer], {})], {})
    assert FetchByIdResponse.decode(response.encode()).topics == response.topics
