"""A message of a subscription, and one delivery of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from triggerer.abc import BrokerMessage
from triggerer.pluginkit.dumping import get_size


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


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery of a message; it is the broker payload of its event.

    Attributes:
        ack_id: What the service knows the delivery by. It changes where the message comes again while it is held.
        key: The ordering key; empty: none.
        lane: The ordering key, or the message itself where it has none.
        identity: The idempotency key.
        attempt: Which delivery of the message this is, where the subscription counts them; else 0.
    """

    message: BrokerMessage
    message_id: str
    ack_id: str
    key: str
    lane: str
    size: int
    identity: str
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
    raw = received.message
    published = raw.publish_time
    key, message_id = raw.ordering_key, raw.message_id
    position = {"subscription": subscription, "message_id": message_id, "ordering_key": key}
    message = BrokerMessage(
        raw.data,
        key.encode() if key else None,
        dict(raw.attributes),
        position,
        datetime.fromtimestamp(published.seconds, UTC).replace(
            microsecond=published.nanos // 1_000
        ),
        received.delivery_attempt or None,
    )
    # The service gives ids that are unique within a topic, and the time of publication with them; both stay the same
    # when the message comes again. The time tells a topic that was made anew, also where it counts from the beginning.
    identity = f"{subscription}/{message_id}@{published.seconds}.{published.nanos:09}"
    return Delivery(
        message,
        message_id,
        received.ack_id,
        key,
        f"key:{key}" if key else f"message:{message_id}",
        get_size(message),
        identity,
        received.delivery_attempt,
    )
