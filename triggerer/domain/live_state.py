"""The live state of streams, such as their lag and their pauses. Only the owner of a stream knows its live state.

A message is outstanding from its broadcast to the watchers until the broker's position moves past it. The order of
messages is kept within a lane, such as a Kafka partition or a FIFO group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LaneLive:
    """A lane that stands, that has outstanding messages, or that has messages which wait at the broker.

    A lane stands if its producer can neither deliver the next message again nor dead-letter it.
    """

    lane: str
    """The lane as JSON."""
    outstanding: int
    outstanding_bytes: int
    """The size of the lane's outstanding messages; 0 if the producer does not report sizes."""
    seconds: float | None
    """How long the lane's oldest message has been outstanding; None: the lane has no outstanding message."""
    standing: str | None
    """Why the lane stands; None: it does not stand."""
    is_full: bool
    """True from when the lane's outstanding messages or bytes reach their limit until they have fallen to half of it.

    Meanwhile the lane gets no further message.
    """
    lag_messages: int | None = None
    """Messages that wait at the broker, plus the outstanding messages. None: the producer cannot tell."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A reason why a stream, or a part of it, pulls nothing for now."""

    reason: str
    """`stream_full`, `lane_full`, `slow_watcher`, `parked_bound`, `standing`, `restarting` or `stopping`."""
    detail: str | None
    """The watchers or lanes that are the cause, or the error."""


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """A stream's lag and its number of messages, for each recent minute.

    Both lists begin with the oldest minute and end with the present minute.
    """

    newest: int
    """When the present minute began, in seconds since 1970, by the owner's clock."""
    lag: Sequence[int | None]
    """The highest `lag_messages` of each minute. None: the lag was unknown or not measured."""
    consumed: Sequence[int | None]
    """The number of messages that were broadcast in each minute."""


@dataclass(frozen=True, slots=True)
class StreamLive:
    """One stream, as its owner sees it."""

    stream_id: str
    """The digest of the stream key."""
    stream: str
    """The stream's name for people."""
    system: str
    """The first word of `stream`, which usually names the kind of broker or source, such as `kafka`."""
    epoch: int
    """The epoch of the owner's lease."""
    consumed: int
    """Messages that were broadcast since this owner claimed the stream."""
    advanced: int
    """Messages that were broadcast and are no longer outstanding. Failed messages, which the broker delivers again,
    count too."""
    rejected: int
    """Messages that at least one watcher rejected and no watcher failed."""
    failed: int
    """Messages that the broker was told to deliver again."""
    restarts: int
    """How often the stream failed and was opened again."""
    outstanding: int
    outstanding_bytes: int
    lag_messages: int | None
    """Messages that wait at the broker, plus the outstanding messages. None: the producer cannot tell."""
    lag_seconds: float | None
    """The age of the oldest outstanding message. 0: no message is outstanding. None: unknown."""
    behind: int
    """Watchers that have fallen behind."""
    failing: int
    """Triggers that have failed and wait for their restart."""
    triggers: int
    paused: Sequence[Pause]
    lane_count: int
    """Lanes with messages that are outstanding or wait at the broker, and standing lanes."""
    lanes: Sequence[LaneLive]
    """The worst lanes first: standing, then full, then by the age of the oldest message, then by lag."""
    history: StreamHistory | None = None
    """The last minutes of the stream; None: no history was recorded."""


def stream_from_json(value: Mapping[str, Any]) -> StreamLive:
    """Return a stream from the JSON of its owner's report. Unknown keys, which a later release wrote, are ignored."""
    known: dict[str, Any] = {name: value.get(name) for name in StreamLive.__dataclass_fields__}
    known["paused"] = [Pause(one["reason"], one.get("detail")) for one in value["paused"]]
    names = LaneLive.__dataclass_fields__
    known["lanes"] = [LaneLive(**{name: one.get(name) for name in names}) for one in value["lanes"]]
    if (history := value.get("history")) is not None:
        known["history"] = StreamHistory(
            history["newest"], tuple(history["lag"]), tuple(history["consumed"])
        )
    return StreamLive(**known)
