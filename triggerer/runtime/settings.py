"""The bounds of the runtime, with the reasons for their defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Durations in seconds, sizes in events."""

    ack_timeout: float = 300.0
    """How long after its broadcast an event may stay unresolved by a subscriber."""
    subscriber_queue_size: int = 1024
    """How far a subscriber may fall behind before the poll pauses. Events are shared: it costs no memory of its own."""
    overflow_grace: float = 5.0
    """How long the poll pauses for a full subscriber before that subscriber is failed."""
    max_outstanding: int = 20_000
    """Broadcast and not advanced, in a group, before the poll pauses: at some 200 bytes each besides the message. Four
    group commits of the largest size, so that two lanes at their bound leave nothing else idle."""
    max_outstanding_per_lane: int = 10_000
    """The same in one lane: two group commits of the largest size (5,000 rows), so that the next one is full while the
    last one is being written, also where there is one lane; and half of a group, so that one stuck lane leaves room."""
    max_pending: int = 20_000
    """Derived and not yet durable, in a group, before its filters pause; bounds memory while the store is away."""
    burst: int = 256
    """Events that the poll broadcasts before everybody else gets a turn, when the broker has more at hand."""
    burst_readings: int = 1024
    """The same as filters see it: events times those who read each of them. Twenty filters that have 256 events to read
    keep the loop from everything else for 40 ms: from other streams, from heartbeats, from the store's answers."""
    close_timeout: float = 10.0
    """For a plugin to give back what it holds."""
