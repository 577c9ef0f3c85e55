"""A message of a subscription, and one delivery of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

from triggerer.abc import BrokerMessage

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class State(Enum):
    """Where a delivery is. It goes downwards only."""

    EARLY = auto()
    """Received, and held back: an older one of its ordering key has failed, and has to come first."""
    READY = auto()
    """Received, and not yielded yet."""
    OPEN = auto()
    """Yielded, and not resolved."""
    SETTLING = auto()
    """Its events are durable: it is being acknowledged."""
    HELD = auto()
    """It failed, and will be given back."""
    GONE = auto()
    """Acknowledged, given back, or held back as another delivery since one before it in its lane has failed."""


class PubSubMessage(BrokerMessage):
    """A message of a subscription. What hardly anybody looks at is made when it is asked for.

    Nothing of the client's own object is kept: that would keep the whole answer alive in which it came.
    """

    __slots__ = (
        "_kept",
        "_nanos",
        "_seconds",
        "attempt",
        "message_id",
        "ordering_key",
        "subscription",
    )

    def __init__(self, received: Any, subscription: str) -> None:
        raw = received.message
        published = raw.publish_time
        self.value = raw.data  # type: ignore[misc]
        attributes = raw.attributes
        # Its own methods are Python's generic ones, which take twice as long.
        self.attributes = {name: attributes[name] for name in attributes}  # type: ignore[misc]
        self.message_id: str = raw.message_id
        self.ordering_key: str = raw.ordering_key
        self.attempt: int = received.delivery_attempt
        self.subscription = subscription
        self._seconds: int = published.seconds
        self._nanos: int = published.nanos
        self._kept: dict[str, Any] | None = None

    # The base class is frozen by a method of its own, which would be called for each of the above.
    __setattr__ = object.__setattr__
    # And compared by its fields, which are not kept here.
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
        return _EPOCH + timedelta(0, self._seconds, self._nanos // 1_000)

    @property
    def deliveries(self) -> int | None:
        return self.attempt or None

    @property
    def identity(self) -> str:
        """The idempotency key: `<subscription>/<message id>@<time of publication>`."""
        return f"{self.subscription}/{self.message_id}@{self._seconds}.{self._nanos:09}"

    def decoded(self, name: str, decode: Callable[[BrokerMessage], Any]) -> Any:
        kept = self._kept
        if kept is None:
            kept = self._kept = {}
        if name not in kept:
            kept[name] = decode(self)
        return kept[name]

    def json(self) -> Any:
        kept = self._kept
        return kept["json"] if kept is not None and "json" in kept else super().json()

    def __reduce__(self) -> tuple[Any, ...]:
        # For a filter in another process, which needs no more than everybody's message.
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
    """One delivery of a message; it is the broker payload of its event.

    Attributes:
        ack_id: What the service knows the delivery by. It changes where the message comes again while it is held.
        key: The ordering key; empty: none.
        lane: The ordering key, or the message itself where it has none.
        size: In bytes, of value, key and attributes.
        attempt: Which delivery of the message this is, where the subscription counts them; else 0.
    """

    message: PubSubMessage
    message_id: str
    ack_id: str
    key: str
    lane: str
    size: int
    attempt: int
    state: State = State.READY

    @property
    def is_stale(self) -> bool:
        """Whether it comes again whatever becomes of it here."""
        return self.state is not State.OPEN

    def __repr__(self) -> str:
        return f"<Delivery {self.message_id} {self.state.name.lower()}>"


def read_delivery(received: Any, subscription: str) -> Delivery:
    """Read what the service has sent.

    Args:
        received: A protobuf `ReceivedMessage`.
        subscription: Its full path.
    """
    message = PubSubMessage(received, subscription)
    key, message_id = message.ordering_key, message.message_id
    size = len(message.value or b"")
    if key:
        size += len(key.encode())
        lane = f"key:{key}"
    else:
        lane = f"message:{message_id}"
    for name, value in message.attributes.items():
        size += len(name) + len(value)
    return Delivery(message, message_id, received.ack_id, key, lane, size, message.attempt)
