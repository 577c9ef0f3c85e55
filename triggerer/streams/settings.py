"""The bounds of the runtime, with the reasons for their defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Durations in seconds, sizes in events unless the name says bytes."""

    ack_timeout: float = 300.0
    """How long after its broadcast an event may stay unresolved by a subscriber."""
    subscriber_queue_size: int = 1024
    """How far a subscriber may fall behind before the poll pauses. A queue costs no memory: the events are shared."""
    overflow_grace: float = 5.0
    """How long the poll pauses for a full subscriber before that subscriber is failed."""
    max_outstanding: int = 20_000
    """Broadcast and not advanced, in a group, before the poll pauses; some 200 bytes each besides the message. Four
    group commits of the largest size: twice the bound of a lane."""
    max_outstanding_per_lane: int = 10_000
    """The same in one lane. Two group commits of the largest size (5,000 rows), so that even with one lane the next
    commit is full while one is being written; and half of a group's bound, so that one stuck lane leaves room."""
    max_outstanding_bytes: int = 64 * 1024 * 1024
    """The same bound in the bytes of the messages, where the producer tells their sizes. Messages larger than 3 KiB on
    average reach it before the one in events; 64 messages of 1 MiB are enough to keep a broker's connection busy. The
    message that reaches it may exceed it."""
    max_outstanding_bytes_per_lane: int = 32 * 1024 * 1024
    """The same in one lane: half of a group's, so that one stuck lane leaves room."""
    max_pending: int = 20_000
    """Derived and not yet durable, of one stream, before its filters pause; bounds memory while the store is away."""
    most_recent: int = 2_048
    """How many of the newest messages of a lane in which somebody is behind are kept for those who catch up, so that
    they can reach its head; and 4 MiB of them at most. Who is further behind reads the log."""
    max_deliveries: int = 10
    """How often a watcher that catches up fails a message before others are tried; if one passes, it is set aside."""
    burst: int = 256
    """How many events the poll broadcasts before other tasks get to run, when the broker has more."""
    burst_readings: int = 1024
    """The same, counted in events times the subscribers that read each of them. Twenty filters with 256 events to read
    keep the event loop busy for 40 ms, in which no other stream, no heartbeat and no answer of the store is handled."""
    close_timeout: float = 10.0
    """How long `aclose()` and `cleanup()` of a plugin may take."""
