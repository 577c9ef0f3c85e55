"""Checks parked messages: their bounds, and the evidence for parking each message (rule 18)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

from triggerer.testing.simulation.kernel.delivery import size_of_bodies

if TYPE_CHECKING:
    from triggerer.domain.watchers.lane_positions import Position
    from triggerer.streams.catchup.backlogs.backlog import Backlog
    from triggerer.testing.simulation.kernel.delivery import (
        Message,
        ParkedBody,
        ParkedBounds,
        ParkedRow,
    )


class ParkedChecker:
    """Counts the messages and probes that catch-up filters get, and checks the parked messages at each commit.

    Args:
        fail: Called with the broken rule and the details.
        is_hopeless: Called with a watcher's id and a message's key. Returns True if the watcher rejected the message,
            or the store refused the watcher's events of the message.
    """

    def __init__(
        self, fail: Callable[[str, str], None], is_hopeless: Callable[[int, str], bool]
    ) -> None:
        self.rows: Mapping[tuple[int, str], ParkedRow] = {}
        """The store's rows, by watcher and key."""
        self.bounds: ParkedBounds | None = None
        """The bounds of parked messages; set before the first check."""
        self.has_one_stream = False
        """Whether there is only one stream.

        With several streams, the service may exceed the bound on all parked bytes a little.
        """
        self.has_room = False
        """Whether the bounds are too large to be reached."""
        self.max_deliveries: float = math.inf
        self._fail = fail
        self._is_hopeless = is_hopeless
        self._given = Counter[tuple[int, str]]()
        """By watcher and message, how often a filter got the message, not counting probes."""
        self._passed_probes = Counter[int]()
        """The number of probes that each watcher passed."""
        self._passed_before: dict[tuple[int, str], int] = {}
        """By watcher and message: the watcher's `_passed_probes` when its filter first got the message."""
        self._failed: Counter[Backlog] = Counter()
        """The number of probes that failed for each backlog."""
        self._tried: dict[tuple[int, Hashable], set[str]] = {}
        """The keys of all probes, by watcher and lane."""
        self._blamed: dict[Backlog, tuple[Position, str | None, object]] = {}
        """The backlogs whose watcher has passed a probe.

        After the probe, the failed message at the backlog's cursor gets one more attempt, and is parked if the attempt
        fails. Each value has three parts:

        - the position of the failed message
        - the key of the message that the filter got after the probe, or None
        - the catch-up (see `by` in `on_given`)

        If the filter passes the message, it may get the next message before the position moves. So `on_given` compares
        the messages' keys too, and not only the positions.
        """

    # Filters

    def on_given(self, backlog: Backlog, watcher: int, message: Message, by: object) -> None:
        """Check a filter's next message from a backlog.

        Args:
            by: Identifies the catch-up. A new catch-up starts if the watcher's arguments change.
        """
        at = watcher, message.key
        self._given[at] += 1
        self._passed_before.setdefault(at, self._passed_probes[watcher])
        position, given, blamed_by = self._blamed.pop(backlog, (None, None, by))
        if blamed_by is not by or position != backlog.cursor or given not in (None, message.key):
            # No violation: no probe has passed, the filter gets another message, or a new catch-up has started.
            return
        self._blamed[backlog] = backlog.cursor, message.key, by
        if given is not None and self.has_room:
            self._fail(
                "S13",
                f"watcher {watcher} passed a probe, failed with {message.key} again, and gets it yet again",
            )

    def on_tried(self, backlog: Backlog, watcher: int, message: Message) -> None:
        """Record a probe. It counts as failed until `on_passed` is called."""
        self._failed[backlog] += 1
        self._tried.setdefault((watcher, backlog.lane), set()).add(message.key)

    def on_passed(self, backlog: Backlog, watcher: int, by: object, *, is_evidence: bool) -> None:
        """Record that the filter has passed the probe.

        Args:
            by: Identifies the catch-up. A new catch-up starts if the watcher's arguments change.
            is_evidence: True if the filter yielded events for the probe or rejected it. A skipped probe proves nothing.
        """
        self._failed[backlog] -= 1
        if is_evidence:
            self._passed_probes[watcher] += 1
            known = self._blamed.get(backlog)
            if known is None or known[2] is not by:
                self._blamed[backlog] = backlog.cursor, None, by

    def on_not_written(self) -> None:
        """Record that a message could not be dumped, and so was not parked. A filter gets the message again."""
        self._blamed.clear()

    def count_failed(self, watcher: int, lane: int) -> int:
        """Return the highest number of failed probes of a watcher for a message of this lane."""
        counts = (
            count
            for backlog, count in self._failed.items()
            if backlog.watcher.watcher_id == watcher and backlog.lane == lane
        )
        return max(counts, default=0)

    def was_tried(self, watcher: int, lane: int, message: Message) -> bool:
        """Whether this message was a probe of the watcher for this lane."""
        return message.key in self._tried.get((watcher, lane), ())

    # The store

    def check(
        self,
        before: Mapping[tuple[int, str], ParkedRow],
        set_aside: Iterable[ParkedRow],
        bodies: Collection[ParkedBody],
    ) -> None:
        """Check a committed transaction on parked messages.

        Args:
            set_aside: The rows that the owner of a stream parked in this transaction.
            bodies: All stored bodies.
        """
        self._check_bounds(before)
        for row in set_aside:
            self._check_evidence(row)
            self._check_single(row)
        referred = {row.body for row in self.rows.values()}
        if gone := referred.difference(bodies):
            self._fail("S13", f"the bytes of parked messages are gone: {sorted(gone)}")
        if left := set(bodies) - referred:
            self._fail("L5", f"no parked message refers to the bytes {sorted(left)}")

    def _check_bounds(self, before: Mapping[tuple[int, str], ParkedRow]) -> None:
        """Check that newly parked messages are within the bounds."""
        bounds, after = self.bounds, self.rows
        assert bounds is not None
        for watcher in {at[0] for at in after.keys() - before.keys()}:
            bodies = [row.body for at, row in after.items() if at[0] == watcher]
            count, size_bytes = len(bodies), size_of_bodies(bodies)
            if count > bounds.max_messages or size_bytes > bounds.max_bytes:
                self._fail(
                    "S9",
                    f"{count} messages with {size_bytes} bytes are parked for watcher {watcher}, the bounds are"
                    f" {bounds.max_messages} and {bounds.max_bytes}",
                )
        total, was = (
            size_of_bodies({row.body for row in rows.values()}) for rows in (after, before)
        )
        if self.has_one_stream and total > max(was, bounds.total_bytes):
            self._fail("S9", f"{total} bytes are parked, the bound is {bounds.total_bytes}")

    def _check_evidence(self, row: ParkedRow) -> None:
        """Check that a parked message is hopeless (see `is_hopeless`), or has failed too often.

        A message that failed too often may be parked only if the watcher has passed a probe since it first got the
        message.
        """
        at = row.watcher, row.message
        if self._is_hopeless(*at):
            return
        if not self.max_deliveries < row.failures <= self._given[at]:
            self._fail(
                "S13",
                f"{row.message} is parked for watcher {row.watcher} after {row.failures} failures in"
                f" {self._given[at]} attempts; probes begin after {self.max_deliveries} failures",
            )
        elif self._passed_probes[row.watcher] <= self._passed_before[at]:
            self._fail(
                "S13",
                f"{row.message} is parked for watcher {row.watcher}, which has passed no probe since",
            )

    def _check_single(self, row: ParkedRow) -> None:
        """Check that a message has only one row, except for rows that re-emit its events under other keys."""
        for other in self.rows.values():
            is_same = other.watcher == row.watcher and other.message == row.message
            if is_same and other.key != row.key and not (other.is_reemitted or row.is_reemitted):
                self._fail("S13", f"{row.message} is parked twice for watcher {row.watcher}")
