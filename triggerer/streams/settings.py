"""The bounds of the runtime, with the reasons for their defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The bounds of the runtime. Durations are in seconds. Sizes count events, or bytes if the name says so."""

    ack_timeout: float = 300.0
    """How long a subscriber may leave an event unresolved, counted from the event's broadcast.

    A watcher that catches up has this time for each message, counted from the moment when its filter receives it. An
    advance of the broker has this time, too.
    """
    subscriber_queue_size: int = 1024
    """The poll pauses when a subscriber has this number of unread events.

    A queue costs no memory, because events are shared.
    """
    overflow_grace: float = 5.0
    """How long the poll pauses for a subscriber with a full queue, before that subscriber is failed.

    The subscriber is failed without this delay if it can fall behind alone and a sibling waits for further events.
    """
    max_outstanding: int = 20_000
    """The poll pauses at this number of outstanding events in a group. Each event costs some 200 bytes in addition to
    the message.

    20,000 events are four group commits of the largest size.
    """
    max_outstanding_per_lane: int = 10_000
    """The poll pauses at this number of outstanding events in one lane.

    10,000 events are two group commits of the largest size (5,000 rows). So even a single lane fills the next commit
    while the previous commit is being written. The bound is half of the group's, so that a stuck lane leaves room for
    other lanes.
    """
    max_outstanding_bytes: int = 64 * 1024 * 1024
    """The poll pauses at this number of outstanding bytes in a group, if the producer tells the sizes.

    64 messages of 1 MiB are enough to keep a broker's connection busy. The message that reaches the bound may exceed
    it.
    """
    max_outstanding_bytes_per_lane: int = 32 * 1024 * 1024
    """The poll pauses at this number of outstanding bytes in one lane. The bound is half of the group's, so that a
    stuck lane leaves room.
    """
    max_pending: int = 20_000
    """A stream's filters pause while this number of the stream's events has no answer from the
    store. This bounds memory while the store is away.
    """
    most_recent: int = 2_048
    """While a lane has backlogs, at most this number of its newest messages, with at most 4 MiB, stay in memory.

    A watcher that has nearly caught up reads these messages from memory, so that it can reach the end of a busy lane. A
    watcher that is further behind reads the log.
    """
    max_deliveries: int = 10
    """After this number of failures of one message during catch-up, later messages are tried as probes.

    If a probe passes and the message then fails again, the message is parked.
    """
    burst: int = 256
    """The most events that the poll broadcasts before it lets other tasks run."""
    burst_readings: int = 1024
    """The most readings in a burst. An event that three subscribers read counts as three readings.

    Without this limit, 20 filters that read 256 events each would keep the event loop busy for 40 ms, and other streams
    and heartbeats would wait.
    """
    close_timeout: float = 10.0
    """How long a plugin's `aclose()` and `cleanup()` may take, and how long a filter may continue after its subscriber
    has ended.
    """
