"""KafkaEventTrigger without a broker: arguments, identity, filtering."""

import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import TopicPartition

from producers.kafka import KafkaMessage
from producers.kafka.in_flight import LaneInFlight
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.cluster import Membership
from tests.unit.watchers.kafka_records import LANE, Record
from triggerer.abc import current_subscriber
from triggerer.errors import DagError
from watchers.kafka import KafkaEventTrigger


@dataclass
class Rejections:
    count: int = 0
    open: bool = field(default=True)

    def reject_open_event(self, reason: str | None = None) -> bool:
        self.count += 1
        return True


@pytest.fixture
def rejections() -> Any:
    rejected = Rejections()
    token = current_subscriber.set(rejected)
    yield rejected
    current_subscriber.reset(token)


async def payloads(trigger: KafkaEventTrigger, *records: Record) -> list[Any]:
    async def stream() -> AsyncIterator[KafkaMessage]:
        for record in records:
            yield KafkaMessage(record, LANE, 0)

    return [event.payload async for event in trigger.filter_shared_stream(stream())]


async def test_by_default_each_message_carries_value_key_and_position() -> None:
    (payload,) = await payloads(KafkaEventTrigger("flights"), Record(b'{"a": 1}'))
    assert payload == {
        "value": {"a": 1},
        "key": "k",
        "topic": "flights",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
    }


async def test_only_messages_that_match_become_events() -> None:
    trigger = KafkaEventTrigger("flights", match={"a": {"gt": 1}}, extra={"a": "a", "o": "@offset"})
    found = await payloads(
        trigger, Record(b'{"a": 1}'), Record(b'{"a": 2}'), Record(b"[]"), Record(None)
    )
    assert found == [{"a": 2, "o": 7}]


async def test_a_message_that_cannot_be_decoded_is_rejected_and_named(
    rejections: Rejections, caplog: pytest.LogCaptureFixture
) -> None:
    found = await payloads(KafkaEventTrigger("flights"), Record(b"{broken"), Record(b"1"))
    assert [payload["value"] for payload in found] == [1]
    assert rejections.count == 1
    assert "flights[3]@7" in caplog.text


async def test_text_that_is_no_utf8_is_rejected(rejections: Rejections) -> None:
    found = await payloads(
        KafkaEventTrigger("flights", decode="text"), Record(b"\xff"), Record("grün".encode())
    )
    assert [payload["value"] for payload in found] == ["grün"]
    assert rejections.count == 1


async def test_text_with_a_nul_character_is_rejected_and_says_what_to_do(
    rejections: Rejections, caplog: pytest.LogCaptureFixture
) -> None:
    assert not await payloads(KafkaEventTrigger("flights", decode="text"), Record(b"a\0b"))
    assert rejections.count == 1
    assert "a NUL character at 1, so it is no text: decode it as bytes" in caplog.text


async def test_bytes_are_base64_and_none_leaves_the_value_alone() -> None:
    record = Record(b"\x00\xff", key=b"\xff")
    (as_bytes,) = await payloads(KafkaEventTrigger("flights", decode="bytes"), record)
    (as_none,) = await payloads(KafkaEventTrigger("flights", decode=None), record)
    assert (as_bytes["value"], as_bytes["key"]) == ("AP8=", "base64:/w==")
    assert as_none["value"] is None


async def test_tombstones_and_missing_keys_are_null() -> None:
    (payload,) = await payloads(KafkaEventTrigger("flights"), Record(None, key=None))
    assert (payload["value"], payload["key"]) == (None, None)


def test_a_value_is_decoded_once_for_all_subscribers() -> None:
    message = KafkaMessage(Record(b'{"a": 1}'), LANE, 0)
    assert message.json() is message.json()
    broken = KafkaMessage(Record(b"{"), LANE, 0)
    for _ in range(2):
        with pytest.raises(ValueError, match="unexpected end"):
            broken.json()


def test_a_message_reaches_a_filter_in_another_process_without_its_assignment() -> None:
    lane = LaneInFlight(TopicPartition("flights", 3), Membership(1, "me"), CommittedPosition(0))
    record = Record(b'{"a": 1}', headers=(("h", b"v"),))
    message = KafkaMessage(record, lane, 2)
    message.json()
    copy = pickle.loads(pickle.dumps(message))
    assert (copy.topic, copy.partition, copy.offset) == ("flights", 3, 7)
    assert (copy.timestamp, copy.key, copy.headers) == (record.timestamp, b"k", (("h", b"v"),))
    assert (copy.delivery, copy.value, copy.json()) == (2, b'{"a": 1}', {"a": 1})
    assert copy.lane.closed, "the producer would take it for one of its own"


def test_equal_topics_connection_and_group_share_a_stream_whatever_else_differs() -> None:
    one = KafkaEventTrigger(["b", "a"], match={"x": 1}, start="latest", decode="text")
    two = KafkaEventTrigger(("a", "b", "a"))
    assert one.shared_stream_key() == two.shared_stream_key()
    assert one.group == two.group
    assert one.group.startswith("triggerer-")
    for other in (
        KafkaEventTrigger("a"),
        KafkaEventTrigger(["a", "b"], connection="other"),
        KafkaEventTrigger(["a", "b"], group_id="mine"),
    ):
        assert other.shared_stream_key() != two.shared_stream_key()


def test_serialisation_is_json_and_makes_an_equal_trigger() -> None:
    trigger = KafkaEventTrigger(("b", "a"), match={"y": (1, 2), "x": 1}, extra={"k": "@key"})
    path, kwargs = trigger.serialize()
    assert path == "watchers.kafka.KafkaEventTrigger"
    again = KafkaEventTrigger(**json.loads(json.dumps(kwargs)))
    assert json.dumps(again.serialize()) == json.dumps(trigger.serialize())
    assert kwargs["topics"] == ["a", "b"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"topics": []},
        {"topics": ""},
        {"topics": [1]},
        {"topics": 5},
        {"topics": "a", "connection": ""},
        {"topics": "a", "group_id": ""},
        {"topics": "a", "start": "middle"},
        {"topics": "a", "decode": "yaml"},
        {"topics": "a", "match": {"x": {"above": 1}}},
        {"topics": "a", "extra": {"x": "@nothing"}},
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(DagError):
        KafkaEventTrigger(**arguments)


def record(number: int) -> KafkaMessage:
    return KafkaMessage(Record(json.dumps({"w": number}).encode(), offset=number), LANE, 0)


def test_siblings_that_ask_the_same_field_are_selected_by_one_reading() -> None:
    one = KafkaEventTrigger("flights", match={"w": 1}).shared_stream_selector()
    two = KafkaEventTrigger("flights", match={"w": [2, 3]}, extra={}).shared_stream_selector()
    key = KafkaEventTrigger("flights", match={"@key": "k"}).shared_stream_selector()
    text = KafkaEventTrigger("flights", match={"w": 1}, decode="text").shared_stream_selector()
    assert one is not None
    assert two is not None
    assert key is not None
    assert text is not None
    assert one.by == two.by
    assert len({one.by, key.by, text.by}) == 3
    assert (one.values, two.values) == ({1}, {2, 3})
    assert [one.read(record(number)) for number in (1, 2)] == [1, 2]
    assert key.read(record(1)) == "k"


def test_who_fires_for_every_message_or_for_a_range_has_no_selector() -> None:
    assert KafkaEventTrigger("flights").shared_stream_selector() is None
    assert KafkaEventTrigger("flights", match={"w": {"gt": 1}}).shared_stream_selector() is None


def test_what_is_not_json_cannot_be_read_by_a_selector() -> None:
    selector = KafkaEventTrigger("flights", match={"w": 1}).shared_stream_selector()
    assert selector is not None
    with pytest.raises(ValueError, match="invalid literal"):
        selector.read(KafkaMessage(Record(b"no json"), LANE, 0))


def test_a_dag_file_that_uses_it_does_not_import_what_reads_its_connection() -> None:
    code = "import sys, watchers.kafka; print('pydantic' in sys.modules)"
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown == "False\n"


@pytest.mark.parametrize(
    ("topics", "hint"),
    [
        ("orders-*", "such as '^orders-.*$'"),
        ("orders.?", "such as '^orders\\\\..$'"),
        ("orders, returns", "write several topics as a list: ['orders', 'returns']"),
        ("orders/eu", None),
        ("a" * 250, None),
    ],
)
def test_what_no_topic_can_be_called_is_refused_with_what_is_meant(
    topics: str, hint: str | None
) -> None:
    with pytest.raises(DagError, match="cannot be the name of a topic") as raised:
        KafkaEventTrigger(topics)
    assert (hint or "") in (raised.value.hint or "")
    assert (raised.value.hint is None) is (hint is None)
