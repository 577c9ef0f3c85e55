"""A message is frozen, because a filter that changed it would change it for its siblings."""

from __future__ import annotations

import codecs
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import UTC, datetime

import orjson
import pytest
from aiokafka import TopicPartition
from google.pubsub_v1.types import PubsubMessage, ReceivedMessage

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.cluster import Membership
from producers.pubsub.message import read_delivery
from tests.unit.producers.test_kafka_in_flight import Record
from triggerer.abc import BrokerMessage

FIELDS = ("value", "key", "attributes", "position", "published_at", "deliveries")


def message() -> BrokerMessage:
    published = datetime(2026, 11, 27, tzinfo=UTC)
    return BrokerMessage(b'{"n": 1}', b"k", {"a": "b"}, {"id": 7}, published, 2)


def of_kafka() -> KafkaMessage:
    lane = LaneInFlight(TopicPartition("orders", 0), Membership(1, ""), CommittedPosition(0))
    return KafkaMessage(Record(3, value=b'{"n": 1}'), lane, 0)


def of_pubsub() -> BrokerMessage:
    received = ReceivedMessage(ack_id="a", message=PubsubMessage(data=b'{"n": 1}', message_id="m"))
    return read_delivery(ReceivedMessage.pb(received), "projects/p/subscriptions/s").message


@pytest.mark.parametrize("make", [message, of_kafka, of_pubsub])
@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_a_message_can_be_changed(make: Callable[[], BrokerMessage], name: str) -> None:
    one = make()
    before = getattr(one, name)
    with pytest.raises(FrozenInstanceError):
        setattr(one, name, b"another")
    with pytest.raises(FrozenInstanceError):
        delattr(one, name)
    assert getattr(one, name) == before


@pytest.mark.parametrize("make", [message, of_kafka, of_pubsub])
def test_it_is_of_its_class_and_decoded_once(make: Callable[[], BrokerMessage]) -> None:
    one = make()
    assert type(one) in (BrokerMessage, KafkaMessage, type(of_pubsub()))
    assert one.json() == {"n": 1}
    assert one.json() is one.json()
    assert one.decoded("kept", lambda _: object()) is one.decoded("kept", lambda _: object())


def test_a_message_can_be_copied_with_another_value_and_pickled() -> None:
    assert replace(message(), value=b"2").json() == 2
    again = pickle.loads(pickle.dumps(message()))
    assert again == message()
    assert again.json() == {"n": 1}
    with pytest.raises(FrozenInstanceError):
        again.value = b""


@dataclass(frozen=True, slots=True)
class Extended(BrokerMessage):
    """A frozen dataclass with one more field, as a plugin may define it."""

    shelf: str = ""


class Subclass(BrokerMessage):
    """A plain subclass, which may set an attribute of its own."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self.shelf = "toys"


def test_a_plugin_can_derive_a_class_of_its_own_frozen_or_not() -> None:
    extended = Extended(b"1", shelf="toys")
    assert (extended.json(), extended.attributes, extended.shelf) == (1, {}, "toys")
    assert replace(extended, shelf="books").shelf == "books"
    derived = Subclass(b"1")
    assert (derived.json(), derived.shelf) == (1, "toys")
    for one in (extended, derived):
        with pytest.raises(FrozenInstanceError):
            one.value = b"2"  # type: ignore[misc]


@pytest.mark.parametrize("value", [b"[1]", codecs.BOM_UTF8 + b"[1]"])
def test_a_lack_of_memory_is_no_fault_of_the_message(
    monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    """The filter would reject a message that raises a ValueError."""

    def refuse(text: bytes) -> object:
        # orjson reads the byte order mark as a mistake.
        reason = "unexpected character" if text.startswith(codecs.BOM_UTF8) else "Not enough memory"
        raise orjson.JSONDecodeError(reason, "", 0)

    monkeypatch.setattr(orjson, "loads", refuse)
    with pytest.raises(MemoryError):
        replace(message(), value=value).json()
