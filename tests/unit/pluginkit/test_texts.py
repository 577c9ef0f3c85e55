"""Keys and attributes of messages as text, in every place that makes text of them."""

import struct
from collections.abc import Mapping
from typing import Any

import pytest
from google.pubsub_v1 import ReceivedMessage

from producers.kafka.message import KafkaMessage
from producers.pubsub.message import read_delivery
from tests.unit.watchers.kafka_records import LANE, Record
from triggerer.abc import BrokerMessage, TriggerEvent
from triggerer.pluginkit.message_trigger import MessageTrigger
from triggerer.pluginkit.texts import text_of, texts_of
from triggerer.store.events.encoding import encode_extra
from watchers.http import HttpPollTrigger
from watchers.kafka import KafkaEventTrigger
from watchers.pubsub import PubSubEventTrigger
from watchers.servicebus import ServiceBusEventTrigger
from watchers.sqs import SqsEventTrigger

NUMBER = struct.pack(">q", 42)
SHOWN = "base64:AAAAAAAAACo="
HALF = "\ud83d"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (None, None),
        (b"", ""),
        (b"customer-7", "customer-7"),
        ("grün".encode(), "grün"),
        (b"a\tb\x1fc", "a\tb\x1fc"),
        (NUMBER, SHOWN),
        (b"\xff", "base64:/w=="),
        ("grün", "grün"),
        ("a\0b", "base64:YQBi"),
        (HALF, "base64:7aC9"),
    ],
)
def test_what_no_database_can_hold_as_text_is_base64(raw: Any, text: str | None) -> None:
    assert text_of(raw) == text


def test_names_of_attributes_are_text_too() -> None:
    assert texts_of({"a": b"1", "n\0": "x", HALF: NUMBER, "none": None}) == {
        "a": "1",
        "base64:bgA=": "x",
        "base64:7aC9": SHOWN,
        "none": None,
    }


def kafka_message() -> BrokerMessage:
    headers = (("h", NUMBER), ("n\0", b"1"))
    return KafkaMessage(Record(b'{"order": 1}', key=NUMBER, headers=headers), LANE, 0)


def live_pubsub_message() -> BrokerMessage:
    received = ReceivedMessage(
        message={
            "data": b'{"order": 1}',
            "ordering_key": "a\0",
            "attributes": {"h": "\0", "n\0": "1"},
            "message_id": "1",
        }
    )
    return read_delivery(ReceivedMessage.pb(received), "projects/p/subscriptions/s").message


def message_of(**position: Any) -> BrokerMessage:
    attributes: Mapping[str, str | bytes] = {"h": NUMBER, "n\0": "\0", "half": HALF}
    return BrokerMessage(b'{"order": 1}', NUMBER, attributes, position)


SERVICE_BUS = message_of(
    message_id="m\0", entity="q", session_id="\0", sequence_number=1, subject="s\0",
    correlation_id="\0", content_type="\0",
)  # fmt: skip
SQS = message_of(message_id="m", queue="q", group_id="g", sequence_number=None)


def each_path(trigger: type[MessageTrigger]) -> dict[str, str]:
    return {name: f"@{name}" for name in trigger.ATTRIBUTES}


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        (KafkaEventTrigger, "t", kafka_message()),
        (KafkaEventTrigger, "t", message_of(topic="t", partition=0, offset=1)),
        (SqsEventTrigger, "q", SQS),
        (PubSubEventTrigger, "s", live_pubsub_message()),
        (PubSubEventTrigger, "s", message_of(message_id="1", subscription="s")),
        (ServiceBusEventTrigger, "q", SERVICE_BUS),
        (HttpPollTrigger, "http://h/", message_of(url="http://h/", item_key="i\0")),
    ],
)
async def test_whatever_bytes_a_message_has_the_store_takes_its_event(
    kind: type[MessageTrigger], source: str, message: BrokerMessage
) -> None:
    for extra in (None, each_path(kind)):
        (event,) = await events(kind(source, extra=extra), message)
        encode_extra(event.payload, max_bytes=100_000)


async def test_a_binary_key_is_found_matched_and_divided_by_under_the_same_text() -> None:
    trigger = KafkaEventTrigger(
        "t",
        match={"@key": SHOWN, "@headers.h": SHOWN},
        extra={"key": "@key"},
        partition_key="@key",
    )
    assert await events(trigger, kafka_message()) == [
        TriggerEvent({"key": SHOWN}, partition_key=SHOWN)
    ]


async def events(trigger: MessageTrigger, message: BrokerMessage) -> list[TriggerEvent]:
    async def stream() -> Any:
        yield message

    return [event async for event in trigger.filter_shared_stream(stream())]
