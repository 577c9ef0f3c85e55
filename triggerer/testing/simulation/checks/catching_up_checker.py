"""Checks watchers that fall behind alone: none misses a message, and lanes stay in order (rule 18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from triggerer.testing.simulation.kernel.broadcasts import Broadcasts, LaneOfSession, lane_of

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import (
        Delivery,
        LaneOfBroker,
        Message,
        ParkedRow,
        PositionRow,
    )

Identity = tuple[int, str, int]
"""An event's watcher, idempotency key and ordinal."""


class CatchingUpChecker:
    """Records what the filters did with each message. Checks that broker and store forget no message too early."""

    def __init__(
        self, fail: Callable[[str, str], None], answered: tuple[set[Identity], ...]
    ) -> None:
        self.is_on = False
        self.broadcasts = Broadcasts()
        self.falls_behind = False
        """Whether `on_failure` is "catch_up" in this process. Otherwise the broker redelivers failed messages."""
        self.rows: dict[tuple[int, int], PositionRow] = {}
        """The store's rows of positions, by watcher and lane."""
        self.parked: dict[tuple[int, str], ParkedRow] = {}
        """The store's rows of stored and parked messages, by watcher and key."""
        self.is_log = False
        self.sets_aside = False
        """Whether messages of a log can be parked."""
        self.is_ordered = True
        """Whether the messages of a lane of the broker have an order."""
        self.lanes: Callable[[str], Sequence[LaneOfBroker]] = lambda _: []
        """The lanes of a topic."""
        self.may_stay_at: Callable[[int, Message], bool] = lambda *_: False
        """Whether a watcher may stay at a message for ever, because the message cannot be parked."""
        self.is_asked: Callable[[int], bool] = lambda _: False
        """Whether a replay was requested for the watcher and is not done."""
        self.is_read_again: Callable[[int, PositionRow], bool] = lambda *_: False
        """Whether a rewound watcher has not yet reached the end that the lane had at the rewind."""
        self.is_selected: dict[int, Callable[[Any], bool]] = {}
        """By watcher, the selector of its live filter: returns True for a raw event that the filter gets."""
        self._fail = fail
        self._answered = answered
        self._derived: dict[tuple[int, str], int] = {}
        """By watcher and message: how many events the filter yielded for the message. Has only passed messages."""
        self._claimed: dict[int, dict[str, Message]] = {}
        """By watcher: the messages that the watcher had to resolve and that the broker has advanced past."""
        self._excused: set[tuple[int, str]] = set()
        """The pairs of a watcher and a message that the watcher need not see.

        The message was rejected, dead-lettered, discarded, or left out by the watcher's selector.
        """
        self._row_ids: dict[tuple[int, str], int] = {}
        """The id of the last row of a message, by watcher and message."""
        self._numbers = 0
        self._stored_at: dict[tuple[int, str], int] = {}
        """By watcher and message, when the message was last stored, as a number from `_next_number`."""
        self._given_at: dict[tuple[int, str], int] = {}
        """By watcher and message, when a filter first got the message, as a number from `_next_number`."""
        self._behind_since: dict[tuple[int, int], int] = {}
        """By watcher and lane, when a backlog or a rewind last became durable, as a number from `_next_number`."""
        self._set_aside: set[tuple[int, str]] = set()
        """Parked messages, which wait for the operator."""
        self._replayed: set[tuple[int, str]] = set()
        """Parked messages that the operator has replayed."""
        self._rejected: set[tuple[int, str]] = set()
        """Messages that a filter rejected while it caught up."""
        self._rejected_live: set[tuple[int, str]] = set()
        self._advanced: dict[tuple[str, int], set[int]] = {}
        """By topic and lane, the offsets of messages whose advance has returned, with any outcome."""
        self._comes_again: set[str] = set()
        """The messages of a log that failed for all their watchers. The broker redelivers them to all watchers."""
        self._behind_to: dict[tuple[int, LaneOfSession], int] = {}
        """By watcher and lane: the number of the last broadcast at which the watcher still had a stored message."""

    # Filters

    def on_opened(self, watcher: int, message: Message) -> None:
        """When a filter gets a message, check that the watcher has missed no earlier message of the lane."""
        self._given_at.setdefault((watcher, message.key), self._next_number())
        for stored in self._stored_before(watcher, message.topic, message.lane, message.key):
            if (watcher, stored) not in self._derived and not self.is_excused(watcher, stored):
                self._fail(
                    "S13",
                    f"watcher {watcher} gets {message.key}, although {stored} is stored for it",
                )
                return
        row = self.rows.get((watcher, message.lane))
        if row is None or row.topic != message.topic or row.rewound_to is not None:
            # The watcher is not behind in this lane. Or it was rewound, and the stream's owner does not know that yet.
            return
        for earlier in self._between(row, message.offset):
            if not self._has_passed(watcher, earlier):
                self._fail(
                    "S13",
                    f"watcher {watcher} gets {message.key}, although its position is {row.offset} and it has not passed"
                    f" {earlier.key}",
                )
                return

    def on_opened_live(self, watcher: int, delivery: Delivery) -> None:
        """Check that a live filter gets the messages of a lane in order.

        The watcher must have passed each earlier message of the lane that was broadcast to it.
        """
        if not self.falls_behind:
            return
        message = delivery.message
        for earlier in self.broadcasts.outstanding_before(delivery):
            if (
                watcher in earlier.cohort
                and earlier.message.offset < message.offset
                and not self._has_passed(watcher, earlier.message)
            ):
                self._fail(
                    "S13",
                    f"watcher {watcher} reads {message.key} while {earlier.message.key} is undecided",
                )

    def on_passed(self, watcher: int, message: Message, derived: int) -> None:
        """Record that a filter of the watcher has passed a message."""
        at = watcher, message.key
        self._derived[at] = min(derived, self._derived.get(at, derived))

    def on_rejected(self, watcher: int, message: Message) -> None:
        """Record that a catch-up filter has rejected a message."""
        self._rejected.add((watcher, message.key))

    def on_rejected_live(self, watcher: int, message: Message) -> None:
        """Record that a live filter rejects a message. The message may then be parked for the watcher."""
        self._rejected_live.add((watcher, message.key))

    def has_rejected_live(self, watcher: int, key: str) -> bool:
        """Whether a live filter has rejected a message for the watcher."""
        return (watcher, key) in self._rejected_live

    def may_be_set_aside(self, watcher: int, key: str) -> bool:
        """Whether the runtime is allowed to park a message for a watcher without any failure."""
        return self.has_rejected_live(watcher, key) or self.is_hopeless(watcher, key)

    # The broker

    def mark_advanced(self, delivery: Delivery) -> None:
        """Record that the advance with a delivery has returned."""
        message = delivery.message
        self._advanced.setdefault((message.topic, message.lane), set()).add(message.offset)

    def was_advanced(self, message: Message) -> bool:
        """Whether an advance with a message has returned, with any outcome."""
        return message.offset in self._advanced.get((message.topic, message.lane), ())

    def mark_redelivered(self, delivery: Delivery) -> None:
        """Record that the broker redelivers a failed message. Later messages of the lane may be delivered first."""
        self._comes_again.add(delivery.message.key)

    def on_done(self, delivery: Delivery, excused: set[int], owed: set[int]) -> None:
        """Check an advance past a message.

        Args:
            excused: The watchers that need not see the message again.
            owed: The watchers that had to resolve the message.
        """
        message = delivery.message
        self._comes_again.discard(message.key)
        self.broadcasts.mark_done(message)
        excused = excused | {watcher for watcher in owed if self._came_later(watcher, message)}
        self._excused |= {(watcher, message.key) for watcher in excused}
        for watcher in sorted(owed):
            if not self.is_safe(watcher, message):
                self._fail("S13", f"{message.key} is passed, but watcher {watcher} has missed it")
            self._claimed.setdefault(watcher, {})[message.key] = message

    def is_safe(self, watcher: int, message: Message) -> bool:
        """Whether the message's events, or a position of the watcher at or before the message, are durable."""
        if self.is_standing_before(watcher, message):
            return True
        return self._is_settled(watcher, message) or self._came_later(watcher, message)

    def is_standing_before(self, watcher: int, message: Message) -> bool:
        """Whether the message is stored for the watcher, or the watcher's stored position is not past the message."""
        row = self.rows.get((watcher, message.lane))
        if row is not None and row.topic == message.topic and row.offset <= message.offset:
            return True
        return (watcher, message.key) in self.parked

    def _came_later(self, watcher: int, message: Message) -> bool:
        """Whether the watcher joined after the message was done, and has a position past the message.

        If the advance was lost, the broker delivers the message again. Such a watcher need not get the message then.
        """
        row = self.rows.get((watcher, message.lane))
        if row is None or row.topic != message.topic or row.offset <= message.offset:
            return False
        return self.broadcasts.was_done_before(watcher, message)

    def was_behind(self, watcher: int, delivery: Delivery) -> bool:
        """Whether the watcher had stored messages in the lane when this delivery was broadcast.

        If so, the outcome of the watcher's live filter does not count.
        """
        return delivery.number <= self._behind_to.get((watcher, lane_of(delivery)), 0)

    # The store

    def on_stored(self, watcher: int, key: str) -> None:
        """When an event of a message becomes durable, check that events of earlier missed messages are durable too."""
        topic, lane, offset = key.rsplit("/", 2)
        for stored in self._stored_before(watcher, topic, int(lane), key):
            at = watcher, stored
            if self._given_at.get((watcher, key), math.inf) < self._stored_at[at]:
                # No violation: the filter got this message before the earlier message was stored.
                continue
            if not (self._is_settled_key(*at) or any(one[:2] == at for one in self._answered[1])):
                self._fail(
                    "S13", f"an event of {key} is stored for watcher {watcher} before {stored}"
                )
                return
        row = self.rows.get((watcher, int(lane)))
        if row is None or row.topic != topic or row.rewound_to is not None:
            return
        if (watcher, key) in self._replayed:
            # A replayed message may come before or after others, because the lane has continued without it.
            return
        if self._given_at.get((watcher, key), 0) < self._behind_since.get((watcher, int(lane)), 0):
            # No violation: the live filter got this message before the watcher fell behind.
            return
        for earlier in self._between(row, int(offset)):
            # The event need not wait for an earlier event that the store has refused, because that event is never
            # stored.
            if not (self._is_settled(watcher, earlier) or self._is_refused(watcher, earlier)):
                self._fail(
                    "S13",
                    f"an event of {key} is stored for watcher {watcher} before those of {earlier.key}",
                )
                return

    def on_moved(
        self, watcher: int, lane: int, before: PositionRow | None, after: PositionRow | None
    ) -> None:
        """Check a change of a position's row.

        `before` is None if there was no row, and `after` is None if there is no row now.
        """
        if after is not None and (before is None or after.rewound_to == after.position):
            self._behind_since[watcher, lane] = self._next_number()
        if before is None or (before.rewound_to is not None and self.is_asked(watcher)):
            # The row is new, or a rewind is under way. Until the rewind ends, the row may change in any way, because a
            # new owner of the stream repeats the rewind.
            return
        messages = self.lanes(before.topic)[lane].messages
        if after is not None:
            for message in messages[before.offset : after.offset]:
                if self._is_to_be_set_aside(watcher, message.key) or not self._is_settled(
                    watcher, message
                ):
                    self._fail(
                        "S13",
                        f"the position of watcher {watcher} moves to {after.offset}, but {message.key} is not durable",
                    )
            return
        claimed = self._claimed.get(watcher, {})
        committed = self.lanes(before.topic)[lane].position
        # Check only committed messages, because the broker redelivers all others.
        for message in messages[before.offset : committed]:
            if message.key in claimed and not self._is_settled(watcher, message):
                self._fail(
                    "S13",
                    f"the position of watcher {watcher} is deleted, but it has missed {message.key}",
                )
        advanced = self._advanced.get((before.topic, lane), set())
        if before.rewound_to is not None:
            # The watcher had no backlog before the rewind, so it has seen all messages before the row's offset. If the
            # broker delivers these messages again, idempotency keys absorb the events.
            return
        # A failed message that the broker delivers again does not count as advanced.
        advanced = {offset for offset in advanced if messages[offset].key not in self._comes_again}
        if early := set(range(committed, before.offset)) - advanced:
            self._fail(
                "S13",
                f"the position {before.offset} of watcher {watcher} in lane {lane} is deleted before the broker"
                f" advanced past {sorted(early)}",
            )

    def on_row_gone(self, row: ParkedRow) -> None:
        """When the row of a stored or parked message is deleted, check that the message's events are durable."""
        watcher, key = row.watcher, row.message
        self._record_behind_to(watcher, key)
        self._set_aside.discard((watcher, key))
        if not self._is_settled_key(watcher, key):
            self._fail("S13", f"the row of {key} for watcher {watcher} is deleted, but not durable")

    def _record_behind_to(self, watcher: int, key: str) -> None:
        """Record each session's last broadcast in the lane. Until then, messages were stored for the watcher."""
        topic, lane, _ = key.rsplit("/", 2)
        if not self.is_log:
            for at, number in self.broadcasts.last_of(topic, int(lane)):
                self._behind_to[watcher, at] = number

    def record_row(self, row: ParkedRow) -> None:
        """Record when a message was stored or parked, unless its row is known already."""
        at = row.watcher, row.key
        if self._row_ids.get(at) != row.id:
            self._row_ids[at] = row.id
            self._stored_at[at] = self._next_number()

    def is_behind(self, watcher: int, message: Message) -> bool:
        """Whether other messages of the queue's lane are stored for the watcher, and must be read before this one."""
        return any(
            row.key != message.key for row in self._stored_in(watcher, message.topic, message.lane)
        )

    def on_set_aside(self, watcher: int, key: str) -> None:
        """Record that a message is parked."""
        self._record_behind_to(watcher, key)
        self._set_aside.add((watcher, key))

    def on_replayed(self, watcher: int, key: str) -> None:
        """Record that the operator replays a parked message."""
        self._set_aside.discard((watcher, key))
        self._replayed.add((watcher, key))

    def on_discarded(self, watcher: int, key: str) -> None:
        """Record that the operator discards a message."""
        self._set_aside.discard((watcher, key))
        self._excused.add((watcher, key))

    def check_not_parked(self, watcher: int, message: Message) -> None:
        """Check that a message is not parked. Called before the message is dead-lettered because of a bound."""
        if (watcher, message.key) in self.parked:
            self._fail("S9", f"{message.key} is parked for watcher {watcher} and dead-lettered too")

    def on_dead_lettered(self, watcher: int, message: Message) -> None:
        """Record that a message was dead-lettered for the watcher at a bound."""
        self._excused.add((watcher, message.key))

    # At the end

    def find_unread(self, topic: str) -> str | None:
        """Return a description of a watcher that has not caught up in the topic; None if all have caught up."""
        for stored in self.parked.values():
            if stored.is_stored and stored.body[0] == topic:
                return f"{stored.message} is stored for watcher {stored.watcher}"
        for (watcher, lane), row in sorted(self.rows.items()):
            messages, starts = self.lanes(topic)[lane].messages, self.lanes(topic)[lane].starts
            # A recreated topic no longer has the messages before `starts[-1]`. The row may stay until the topic's next
            # message.
            offset = max(row.offset, starts[-1])
            if row.topic != topic or offset >= len(messages):
                continue
            if self._is_dealt_with(row, watcher, messages[offset:]):
                continue
            if not self.may_stay_at(watcher, messages[offset]):
                return f"watcher {watcher} is at {row.offset} of {len(messages)} in lane {lane} of {topic}"
        return None

    def _is_dealt_with(self, row: PositionRow, watcher: int, messages: Sequence[Message]) -> bool:
        """Whether the watcher has dealt with all messages after its position.

        If so, the position's row may stay until the lane's next message. For example, the owner keeps the row after a
        message that failed for all watchers, because the owner does not know whether the broker redelivers the message.
        """
        if self.is_read_again(watcher, row):
            return False
        if self.falls_behind:
            return all(self.is_excused(watcher, message.key) for message in messages)
        return all(self._is_settled(watcher, message) for message in messages)

    def find_missed(self, deleted: set[int]) -> str | None:
        """Return a description of a message that a watcher has missed for good; None if no message was missed."""
        for watcher, messages in self._claimed.items():
            for message in messages.values():
                if watcher not in deleted and not self.is_safe(watcher, message):
                    return f"watcher {watcher} has missed {message.key}"
        return None

    # Evidence

    def _next_number(self) -> int:
        """Return the next number, which is higher than the numbers of all earlier records."""
        self._numbers += 1
        return self._numbers

    def _stored_before(self, watcher: int, topic: str, lane: int, key: str) -> Iterator[str]:
        """Yield the keys of the messages that are stored for the watcher in the lane before this message.

        Messages that were parked are left out, because the lane has continued after them.
        """
        own = self._row_ids.get((watcher, key))
        for row in self._stored_in(watcher, topic, lane):
            is_before = row.key != key and (own is None or row.id < own)
            if is_before and not row.was_set_aside:
                yield row.key

    def _stored_in(self, watcher: int, topic: str, lane: int) -> Iterator[ParkedRow]:
        """Yield the rows that are stored for the watcher in the lane. Yield none if the queue has no order."""
        if self.is_ordered:
            for row in self.parked.values():
                is_stored = row.watcher == watcher and row.is_stored and row.body[0] == topic
                if is_stored and int(row.lane) == lane:
                    yield row

    def _between(self, row: PositionRow, offset: int) -> Iterator[Message]:
        """Yield the messages that the watcher must get before the message at this offset."""
        for message in self.lanes(row.topic)[row.lane].messages[row.offset : offset]:
            if message.key not in self._comes_again:
                yield message

    def _has_passed(self, watcher: int, message: Message) -> bool:
        at = watcher, message.key
        is_dealt_with = at in self._derived or self.is_excused(*at)
        return is_dealt_with or self.is_left_out(watcher, message)

    def _is_settled(self, watcher: int, message: Message) -> bool:
        return self._is_settled_key(watcher, message.key) or self.is_left_out(watcher, message)

    def _is_settled_key(self, watcher: int, key: str) -> bool:
        at = watcher, key
        count = self._derived.get(at)
        if count is not None and all(
            any((*at, ordinal) in answered for answered in self._answered)
            for ordinal in range(count)
        ):
            return True
        return self.is_excused(*at)

    def derives(self, watcher: int, key: str) -> bool:
        """Whether a filter of the watcher yields events for a message, and the store accepts them."""
        is_refused = any(one[:2] == (watcher, key) for one in self._answered[1])
        return bool(self._derived.get((watcher, key))) and not is_refused

    def is_excused(self, watcher: int, key: str) -> bool:
        """Whether the watcher need not see a message now.

        True if the message was rejected, dead-lettered, discarded or parked, or if the selector left the message out.
        In a log also true if the topic was recreated, or if the message was parked and is being replayed.
        """
        at = watcher, key
        if at in self._excused or at in self._set_aside:
            return True
        return self.is_log and (
            self._is_gone(key)
            or any((row.watcher, row.message) == at for row in self.parked.values())
        )

    def _is_gone(self, key: str) -> bool:
        """Whether the message's topic has been recreated."""
        topic, lane, offset = key.rsplit("/", 2)
        return int(offset) < self.lanes(topic)[int(lane)].starts[-1]

    def is_left_out(self, watcher: int, message: Message) -> bool:
        """Whether the watcher's selector leaves out a message."""
        is_selected = self.is_selected.get(watcher)
        return is_selected is not None and not is_selected(message.event)

    def _is_refused(self, watcher: int, message: Message) -> bool:
        return self.is_hopeless(watcher, message.key)

    def _is_to_be_set_aside(self, watcher: int, key: str) -> bool:
        """Whether a message must be parked, because the store has refused its events each time."""
        is_refused = any(one[:2] == (watcher, key) for one in self._answered[1])
        is_taken = self._derived.get((watcher, key)) == 0
        return self.sets_aside and is_refused and not (is_taken or self.is_excused(watcher, key))

    def is_hopeless(self, watcher: int, key: str) -> bool:
        """Whether the watcher rejected a message while it caught up, or the store refused its events."""
        refused = self._answered[1]
        if (watcher, key) in self._rejected:
            return True
        return any(one[:2] == (watcher, key) for one in refused)
