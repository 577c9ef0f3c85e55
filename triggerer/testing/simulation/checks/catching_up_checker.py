"""What must hold of watchers that fall behind alone: none misses a message, and lanes stay in order (rule 18)."""

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
"""Watcher, idempotency key, ordinal."""


class CatchingUpChecker:
    """Notes what the filters have dealt with, and compares it with what the broker is told and the store keeps."""

    def __init__(
        self, fail: Callable[[str, str], None], answered: tuple[set[Identity], ...]
    ) -> None:
        self.is_on = False
        self.broadcasts = Broadcasts()
        self.falls_behind = False
        """Whether `on_failure` is "catch_up" in the process that runs; otherwise what fails comes again behind what was
        outstanding."""
        self.rows: dict[tuple[int, int], PositionRow] = {}
        """By watcher and lane, where it stands: the rows of the store."""
        self.parked: dict[tuple[int, str], ParkedRow] = {}
        """By watcher and key what is parked for it: the rows of the store."""
        self.is_log = False
        self.sets_aside = False
        """Whether what a watcher of a log cannot take is set aside, and filters do the same each time."""
        self.is_ordered = True
        """Whether the messages of a lane of the broker have an order."""
        self.lanes: Callable[[str], Sequence[LaneOfBroker]] = lambda _: []
        """Of a topic."""
        self.may_stay_at: Callable[[int, Message], bool] = lambda *_: False
        """Whether a watcher may stand at a message for ever: it cannot be set aside."""
        self.is_asked: Callable[[int], bool] = lambda _: False
        """Whether somebody has asked to have a watcher read again, and that is not done."""
        self.is_read_again: Callable[[int, PositionRow], bool] = lambda *_: False
        """Whether a watcher was set back, and is still to be given what there was then."""
        self.is_selected: dict[int, Callable[[Any], bool]] = {}
        """By watcher: what its live filter is given."""
        self._fail = fail
        self._answered = answered
        self._derived: dict[tuple[int, str], int] = {}
        """By watcher and message: how many events its filter has derived, where it has moved past the message."""
        self._claimed: dict[int, dict[str, Message]] = {}
        """By watcher: what the broker was told to be done with, although the watcher had to see it."""
        self._excused: set[tuple[int, str]] = set()
        """Rejected, dead-lettered, discarded, or left out by a selector."""
        self._row_ids: dict[tuple[int, str], int] = {}
        """By watcher and message the id of its row, while there is one, and after."""
        self._numbers = 0
        self._stored_at: dict[tuple[int, str], int] = {}
        """When it was kept last, in the order of what is noted here."""
        self._given_at: dict[tuple[int, str], int] = {}
        """When it was first given to a filter of the watcher's, in the same order."""
        self._behind_since: dict[tuple[int, int], int] = {}
        """By watcher and lane, when it was durable last that it is behind, or is set back, in the same order."""
        self._set_aside: set[tuple[int, str]] = set()
        """It is for a person to decide about them."""
        self._replayed: set[tuple[int, str]] = set()
        """A person has had the watcher be given them once more."""
        self._rejected: set[tuple[int, str]] = set()
        self._rejected_live: set[tuple[int, str]] = set()
        """Rejected while catching up."""
        self._advanced: dict[tuple[str, int], set[int]] = {}
        """By topic and lane the offsets of what was in an advance that returned, with whatever outcome."""
        self._comes_again: set[str] = set()
        """Messages of logs that failed for all who had to see them: the broker delivers them again to all."""
        self._behind_to: dict[tuple[int, LaneOfSession], int] = {}
        """By watcher and lane the number of what was broadcast last while something before it was kept for it."""

    # What filters do

    def on_opened(self, watcher: int, message: Message) -> None:
        """A filter of the watcher's, live or not, is given a message: nothing that it has missed lies before it."""
        self._given_at.setdefault((watcher, message.key), self._next_number())
        for kept in self._stored_before(watcher, message.topic, message.lane, message.key):
            if (watcher, kept) not in self._derived and not self.is_excused(watcher, kept):
                self._fail(
                    "S13", f"watcher {watcher} is given {message.key}, and {kept} is kept for it"
                )
                return
        row = self.rows.get((watcher, message.lane))
        if row is None or row.topic != message.topic or row.rewound_to is not None:
            # One that is set back is live until it knows.
            return
        for earlier in self._between(row, message.offset):
            if not self._has_passed(watcher, earlier):
                self._fail(
                    "S13",
                    f"watcher {watcher} is given {message.key}, stands at {row.offset}, and has not dealt with"
                    f" {earlier.key}",
                )
                return

    def on_opened_live(self, watcher: int, delivery: Delivery) -> None:
        """Nothing that it has missed is outstanding before it, where nobody has decided what becomes of that."""
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
                    f"watcher {watcher} reads {message.key}, and it is open what becomes of {earlier.message.key}",
                )

    def on_passed(self, watcher: int, message: Message, derived: int) -> None:
        """A filter of the watcher's has moved past a message."""
        at = watcher, message.key
        self._derived[at] = min(derived, self._derived.get(at, derived))

    def on_rejected(self, watcher: int, message: Message) -> None:
        """A filter that catches up rejects a message: where nothing can be set aside, its lane stands there."""
        self._rejected.add((watcher, message.key))

    def on_rejected_live(self, watcher: int, message: Message) -> None:
        """A filter of the group rejects a message: it may be set aside for the watcher."""
        self._rejected_live.add((watcher, message.key))

    def has_rejected_live(self, watcher: int, key: str) -> bool:
        """Whether a filter of the group has rejected a message for the watcher."""
        return (watcher, key) in self._rejected_live

    def may_be_set_aside(self, watcher: int, key: str) -> bool:
        """Whether a message may be set aside for a watcher without any failure."""
        return self.has_rejected_live(watcher, key) or self.is_hopeless(watcher, key)

    # What the broker is told

    def mark_advanced(self, delivery: Delivery) -> None:
        """It was in an advance that has returned."""
        message = delivery.message
        self._advanced.setdefault((message.topic, message.lane), set()).add(message.offset)

    def was_advanced(self, message: Message) -> bool:
        """Whether it was in an advance that has returned, with whatever outcome."""
        return message.offset in self._advanced.get((message.topic, message.lane), ())

    def mark_redelivered(self, delivery: Delivery) -> None:
        """It has failed, and the broker delivers it again. What was pulled behind it may be given before it."""
        self._comes_again.add(delivery.message.key)

    def on_done(self, delivery: Delivery, excused: set[int], owed: set[int]) -> None:
        """The broker is told that these watchers are done with a message; `excused` need not see it again."""
        message = delivery.message
        self._comes_again.discard(message.key)
        self.broadcasts.mark_done(message)
        excused = excused | {watcher for watcher in owed if self._came_later(watcher, message)}
        self._excused |= {(watcher, message.key) for watcher in excused}
        for watcher in sorted(owed):
            if not self.is_safe(watcher, message):
                self._fail("S13", f"{message.key} is given up, and watcher {watcher} is to see it")
            self._claimed.setdefault(watcher, {})[message.key] = message

    def is_safe(self, watcher: int, message: Message) -> bool:
        """Whether it is durable what the watcher derived from it, or that the watcher stands before it."""
        if self.is_standing_before(watcher, message):
            return True
        return self._is_settled(watcher, message) or self._came_later(watcher, message)

    def is_standing_before(self, watcher: int, message: Message) -> bool:
        """Whether it is durable that the watcher stands at the message or before it, or that this is parked for it."""
        row = self.rows.get((watcher, message.lane))
        if row is not None and row.topic == message.topic and row.offset <= message.offset:
            return True
        return (watcher, message.key) in self.parked

    def _came_later(self, watcher: int, message: Message) -> bool:
        """Whether it lies before where the watcher stands, which came when all others were done with it.

        The broker delivers it again, since it was not told, or has forgotten: to the watcher nobody owes it.
        """
        row = self.rows.get((watcher, message.lane))
        if row is None or row.topic != message.topic or row.offset <= message.offset:
            return False
        return self.broadcasts.was_done_before(watcher, message)

    def was_behind(self, watcher: int, delivery: Delivery) -> bool:
        """Whether the watcher was to be given something else of the lane first: what it answered live counts not."""
        return delivery.number <= self._behind_to.get((watcher, lane_of(delivery)), 0)

    # What becomes durable

    def on_stored(self, watcher: int, key: str) -> None:
        """An event of a message is durable for the first time: all that it has missed before it in the lane was."""
        topic, lane, offset = key.rsplit("/", 2)
        for kept in self._stored_before(watcher, topic, int(lane), key):
            at = watcher, kept
            if self._given_at.get((watcher, key), math.inf) < self._stored_at[at]:
                # It was given this before that was kept: it has failed and came again, and the store is slow.
                continue
            if not (self._is_settled_key(*at) or any(one[:2] == at for one in self._answered[1])):
                self._fail(
                    "S13", f"an event of {key} is stored for watcher {watcher} before {kept}"
                )
                return
        row = self.rows.get((watcher, int(lane)))
        if row is None or row.topic != topic or row.rewound_to is not None:
            return
        if (watcher, key) in self._replayed:
            # Its lane has gone on without it.
            return
        if self._given_at.get((watcher, key), 0) < self._behind_since.get((watcher, int(lane)), 0):
            # It was given it live before that, and the store is slow.
            return
        for earlier in self._between(row, int(offset)):
            # What the store refuses it never gets: nothing can come before that.
            if not (self._is_settled(watcher, earlier) or self._is_refused(watcher, earlier)):
                self._fail(
                    "S13",
                    f"an event of {key} is stored for watcher {watcher} before those of {earlier.key}",
                )
                return

    def on_moved(
        self, watcher: int, lane: int, before: PositionRow | None, after: PositionRow | None
    ) -> None:
        """The row of a watcher was written; None: there is none."""
        if after is not None and (before is None or after.rewound_to == after.position):
            self._behind_since[watcher, lane] = self._next_number()
        if before is None or (before.rewound_to is not None and self.is_asked(watcher)):
            # Its owner counts it as set back when all is durable that was asked, or the next one does it again.
            return
        messages = self.lanes(before.topic)[lane].messages
        if after is not None:
            for message in messages[before.offset : after.offset]:
                if self._is_to_be_set_aside(watcher, message.key) or not self._is_settled(
                    watcher, message
                ):
                    self._fail(
                        "S13",
                        f"watcher {watcher} goes on to {after.offset}, and {message.key} is not durable",
                    )
            return
        claimed = self._claimed.get(watcher, {})
        committed = self.lanes(before.topic)[lane].position
        # What the broker has not committed, it delivers again.
        for message in messages[before.offset : committed]:
            if message.key in claimed and not self._is_settled(watcher, message):
                self._fail(
                    "S13", f"watcher {watcher} is to see {message.key}, and its position goes"
                )
        told = self._advanced.get((before.topic, lane), set())
        if before.rewound_to is not None:
            # It was not behind: what comes again it has, and keys absorb it.
            return
        # What has failed and comes again it is not done with.
        told = {offset for offset in told if messages[offset].key not in self._comes_again}
        if early := set(range(committed, before.offset)) - told:
            self._fail(
                "S13",
                f"the position {before.offset} of watcher {watcher} in lane {lane} goes before the broker was told of"
                f" {sorted(early)}",
            )

    def on_row_gone(self, row: ParkedRow) -> None:
        """A message is not parked any more: what the watcher has derived from it is durable."""
        watcher, key = row.watcher, row.message
        self._record_behind_to(watcher, key)
        self._set_aside.discard((watcher, key))
        if not self._is_settled_key(watcher, key):
            self._fail("S13", f"{key} is parked for watcher {watcher} no more, and is not durable")

    def _record_behind_to(self, watcher: int, key: str) -> None:
        """What was broadcast up to now came while this was kept for the watcher, if it was."""
        topic, lane, _ = key.rsplit("/", 2)
        if not self.is_log:
            for at, number in self.broadcasts.last_of(topic, int(lane)):
                self._behind_to[watcher, at] = number

    def record_row(self, row: ParkedRow) -> None:
        """A message is parked in this place; if it is given once more when it is gone, that is no other place."""
        at = row.watcher, row.key
        if self._row_ids.get(at) != row.id:
            self._row_ids[at] = row.id
            self._stored_at[at] = self._next_number()

    def is_behind(self, watcher: int, message: Message) -> bool:
        """Whether others of the message's lane in a queue are kept for the watcher: it is given this again."""
        return any(
            row.key != message.key for row in self._stored_in(watcher, message.topic, message.lane)
        )

    def on_set_aside(self, watcher: int, key: str) -> None:
        """It is for a person to decide about it."""
        self._record_behind_to(watcher, key)
        self._set_aside.add((watcher, key))

    def on_replayed(self, watcher: int, key: str) -> None:
        """Somebody has decided that the watcher is to be given it once more."""
        self._set_aside.discard((watcher, key))
        self._replayed.add((watcher, key))

    def on_discarded(self, watcher: int, key: str) -> None:
        """Somebody has decided that the watcher need not see it."""
        self._set_aside.discard((watcher, key))
        self._excused.add((watcher, key))

    def check_not_parked(self, watcher: int, message: Message) -> None:
        """The producer is about to be handed it, since it cannot be kept."""
        if (watcher, message.key) in self.parked:
            self._fail("S9", f"{message.key} is dead-lettered for watcher {watcher}, and is parked")

    def on_dead_lettered(self, watcher: int, message: Message) -> None:
        """At a bound the producer was handed it in the watcher's place."""
        self._excused.add((watcher, message.key))

    # At the end

    def find_unread(self, topic: str) -> str | None:
        """Who has not caught up in the topic; None: everybody has."""
        for kept in self.parked.values():
            if kept.is_stored and kept.body[0] == topic:
                return f"{kept.message} is kept for watcher {kept.watcher}"
        for (watcher, lane), row in sorted(self.rows.items()):
            messages, starts = self.lanes(topic)[lane].messages, self.lanes(topic)[lane].starts
            # What it has missed of a log that was made anew is gone; its row may stay until the lane's next message.
            offset = max(row.offset, starts[-1])
            if row.topic != topic or offset >= len(messages):
                continue
            if self._is_dealt_with(row, watcher, messages[offset:]):
                continue
            if not self.may_stay_at(watcher, messages[offset]):
                return f"watcher {watcher} stands at {row.offset} of {len(messages)} in lane {lane} of {topic}"
        return None

    def _is_dealt_with(self, row: PositionRow, watcher: int, messages: Sequence[Message]) -> bool:
        """Whether nothing is missing of what lies behind a row, or all of it has failed for all.

        The owner does not know that the broker has given it up at the limit: its row stays until the lane's next
        message. Who was set back is to be given again what it has.
        """
        if self.is_read_again(watcher, row):
            return False
        if self.falls_behind:
            return all(self.is_excused(watcher, message.key) for message in messages)
        return all(self._is_settled(watcher, message) for message in messages)

    def find_missed(self, deleted: set[int]) -> str | None:
        """What a watcher has missed for good; None: nothing."""
        for watcher, messages in self._claimed.items():
            for message in messages.values():
                if watcher not in deleted and not self.is_safe(watcher, message):
                    return f"watcher {watcher} has missed {message.key}"
        return None

    # Evidence

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _stored_before(self, watcher: int, topic: str, lane: int, key: str) -> Iterator[str]:
        """What is kept for the watcher in the lane, before this message if that is kept too.

        Not what is replayed: the lane has gone on behind that long ago.
        """
        own = self._row_ids.get((watcher, key))
        for row in self._stored_in(watcher, topic, lane):
            is_before = row.key != key and (own is None or row.id < own)
            if is_before and not row.was_set_aside:
                yield row.key

    def _stored_in(self, watcher: int, topic: str, lane: int) -> Iterator[ParkedRow]:
        """What is kept for the watcher in the lane; where each message is one, nothing."""
        if self.is_ordered:
            for row in self.parked.values():
                is_stored = row.watcher == watcher and row.is_stored and row.body[0] == topic
                if is_stored and int(row.lane) == lane:
                    yield row

    def _between(self, row: PositionRow, offset: int) -> Iterator[Message]:
        """What the watcher is to be given before this offset."""
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
        """Whether a filter of the watcher's derives something from a message that the store does not refuse."""
        is_refused = any(one[:2] == (watcher, key) for one in self._answered[1])
        return bool(self._derived.get((watcher, key))) and not is_refused

    def is_excused(self, watcher: int, key: str) -> bool:
        """Whether the watcher need not see it now: it was rejected, dead-lettered, discarded, is set aside, or gone.

        A log goes on behind what is replayed, too.
        """
        at = watcher, key
        if at in self._excused or at in self._set_aside:
            return True
        return self.is_log and (
            self._is_gone(key)
            or any((row.watcher, row.message) == at for row in self.parked.values())
        )

    def _is_gone(self, key: str) -> bool:
        """Whether its log was made anew."""
        topic, lane, offset = key.rsplit("/", 2)
        return int(offset) < self.lanes(topic)[int(lane)].starts[-1]

    def is_left_out(self, watcher: int, message: Message) -> bool:
        """Whether the watcher's selector leaves it out."""
        is_selected = self.is_selected.get(watcher)
        return is_selected is not None and not is_selected(message.event)

    def _is_refused(self, watcher: int, message: Message) -> bool:
        return self.is_hopeless(watcher, message.key)

    def _is_to_be_set_aside(self, watcher: int, key: str) -> bool:
        """Whether the store has refused what derives from it each time."""
        is_refused = any(one[:2] == (watcher, key) for one in self._answered[1])
        is_taken = self._derived.get((watcher, key)) == 0
        return self.sets_aside and is_refused and not (is_taken or self.is_excused(watcher, key))

    def is_hopeless(self, watcher: int, key: str) -> bool:
        """Whether the watcher has rejected it while it caught up, or the store has refused what derives from it."""
        refused = self._answered[1]
        if (watcher, key) in self._rejected:
            return True
        return any(one[:2] == (watcher, key) for one in refused)
