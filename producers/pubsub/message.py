"""A message of a subscription, and one delivery of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

from triggerer.abc import BrokerMessage
from triggerer.pluginkit.texts import text_of, texts_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class State(Enum):
    """The stages of a delivery. A delivery never returns to an earlier stage."""

    EARLY = auto()
    """Received, and waiting for an older message of its ordering key that has failed."""
    READY = auto()
    """Received, and not yielded yet."""
    OPEN = auto()
    """Yielded, and not resolved."""
    SETTLING = auto()
    """The message's events are stored, and the message is being acknowledged."""
    DELAYED = auto()
    """The message failed, and will be given back after a delay."""
    GONE = auto()
    """Acknowledged, given back, or replaced by a new delivery."""


# Look these members up once, because the code that uses them runs for each message.
READY: Final = State.READY
OPEN: Final = State.OPEN
SETTLING: Final = State.SETTLING
GONE: Final = State.GONE


class PubSubMessage(BrokerMessage):
    """A message of a subscription. Fields that few readers need are computed on demand.

    The message does not refer to the client's object, which would keep the whole answer in memory.
    """

    __slots__ = (
        "attempt",
        "message_id",
        "ordering_key",
        "published_ns",
        "published_s",
        "subscription",
    )

    message_id: str
    ordering_key: str
    attempt: int
    subscription: str
    published_s: int
    published_ns: int

    def __init__(
        self, raw: Any, attributes: dict[str, str | bytes], attempt: int, subscription: str
    ) -> None:
        """Read `raw`, a protobuf `PubsubMessage`."""
        published = raw.publish_time
        store = object.__setattr__
        # A message without data has only attributes.
        store(self, "value", raw.data or None)
        store(self, "attributes", attributes)
        store(self, "message_id", raw.message_id)
        store(self, "ordering_key", raw.ordering_key)
        store(self, "attempt", attempt)
        store(self, "subscription", subscription)
        store(self, "published_s", published.seconds)
        store(self, "published_ns", published.nanos)
        self.forget_decoded()

    # Compare by identity: the base class compares fields that this class does not store.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def key(self) -> bytes | None:
        return self.ordering_key.encode() if self.ordering_key else None

    @property
    def position(self) -> dict[str, Any]:
        return {
            "subscription": self.subscription,
            "message_id": self.message_id,
            "ordering_key": self.ordering_key,
        }

    @property
    def published_at(self) -> datetime:
        return _EPOCH + timedelta(0, self.published_s, self.published_ns // 1_000)

    def as_extra(self, value: Any) -> dict[str, Any]:
        """Return the default `extra` of an event, as `PubSubEventTrigger.default_extra` does, but in less time."""
        return {
            "value": value,
            "message_id": self.message_id,
            "subscription": self.subscription,
            "ordering_key": text_of(self.ordering_key) or None,
            "attributes": texts_of(self.attributes),
            "timestamp": self.published_s * 1_000 + self.published_ns // 1_000_000,
        }

    @property
    def deliveries(self) -> int | None:
        return self.attempt or None

    @property
    def identity(self) -> str:
        """The idempotency key: `<subscription>/<message id>@<time of publication>`."""
        # A format specification (`:09`) would take one and a half times as long as `zfill`.
        nanos = str(self.published_ns).zfill(9)
        return f"{self.subscription}/{self.message_id}@{self.published_s}.{nanos}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle a plain `BrokerMessage`: a filter in another process needs only its fields.
        return BrokerMessage, (
            self.value,
            self.key,
            self.attributes,
            self.position,
            self.published_at,
            self.deliveries,
        )


@dataclass(slots=True, eq=False)
class Delivery:
    """The broker payload: one delivery of a message.

    Attributes:
        ack_id: Pub/Sub's id of the delivery. It changes if the message comes again while it is in flight.
        key: The ordering key; empty if the message has none.
        lane: `key:` and the ordering key; `message:` and the message's id if there is no key.
        size: About the number of bytes of value, key and attributes.
    """

    message: PubSubMessage
    message_id: str
    ack_id: str
    key: str
    lane: str
    size: int
    state: State = State.READY

    @property
    def is_stale(self) -> bool:
        """Whether outcomes of this delivery are ignored."""
        return self.state is not State.OPEN

    def __repr__(self) -> str:
        return f"<Delivery {self.message_id} {self.state.name.lower()}>"


def read_delivery(received: Any, subscription: str) -> Delivery:
    """Read a message that Pub/Sub has sent.

    Args:
        received: A protobuf `ReceivedMessage`.
        subscription: The subscription's full path.
    """
    raw = received.message
    size = len(raw.data)
    attributes: dict[str, str | bytes] = {}
    if given := raw.attributes:
        # Loop over the names. The method `items()` of a protobuf mapping is written in Python, and takes twice as long.
        for name in given:
            attributes[name] = text = given[name]
            size += len(name) + len(text)
    message = PubSubMessage(raw, attributes, received.delivery_attempt, subscription)
    message_id, key = message.message_id, message.ordering_key
    size += len(key.encode())
    lane = f"key:{key}" if key else f"message:{message_id}"
    return Delivery(message, message_id, received.ack_id, key, lane, size)
