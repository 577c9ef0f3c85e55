"""What must hold of messages that are parked: their bounds, and why each is set aside (rule 18)."""

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
    """Counts what filters that catch up were given and tried with, and looks at each commit at what is parked.

    Args:
        fail: Called with the rule that was broken, and how.
        is_hopeless: Whether the watcher has rejected the message, or the store has refused what derives from it.
    """

    def __init__(
        self, fail: Callable[[str, str], None], is_hopeless: Callable[[int, str], bool]
    ) -> None:
        self.rows: Mapping[tuple[int, str], ParkedRow] = {}
        """By watcher and key: the rows of the store."""
        self.bounds: ParkedBounds | None = None
        """Of what is parked."""
        self.has_one_stream = False
        """Then nobody else parks anything, and the bound of all is exact."""
        self.has_room = False
        """Whether no bound is ever reached."""
        self.max_deliveries: float = math.inf
        self._fail = fail
        self._is_hopeless = is_hopeless
        self._given = Counter[tuple[int, str]]()
        """By watcher and message, how often a filter was given it, other than to try it."""
        self._in_flight = Counter[int]()
        """By watcher how many messages it has taken when it was tried with them."""
        self._taken_before: dict[tuple[int, str], int] = {}
        """By watcher and message how many those were when it was given it first."""
        self._failed: Counter[Backlog] = Counter()
        """By lane with how many others its watcher has failed."""
        self._tried: dict[tuple[int, Hashable], set[str]] = {}
        """By watcher and lane with which others it was tried."""
        self._blamed: dict[Backlog, tuple[Position, str | None, object]] = {}
        """By lane, where its watcher has taken another message since that at this position failed: which it was given
        since, if any, and by which attempt. It may have taken that, and the position not be stored yet."""

    # What filters do

    def on_given(self, backlog: Backlog, watcher: int, message: Message, by: object) -> None:
        """A filter that catches up is given a message of a lane. `by`: with other arguments there is another."""
        at = watcher, message.key
        self._given[at] += 1
        self._taken_before.setdefault(at, self._in_flight[watcher])
        position, given, blamed_by = self._blamed.pop(backlog, (None, None, by))
        if blamed_by is not by or position != backlog.cursor or given not in (None, message.key):
            # The lane has gone on, or there is another filter before what has failed is set aside.
            return
        self._blamed[backlog] = backlog.cursor, message.key, by
        if given is not None and self.has_room:
            self._fail(
                "S13",
                f"watcher {watcher} has taken another message, has failed with {message.key} again, and is given it"
                " once more",
            )

    def on_tried(self, backlog: Backlog, watcher: int, message: Message) -> None:
        """A filter is tried with another message than that of its lane: it fails, or `on_passed` is called."""
        self._failed[backlog] += 1
        self._tried.setdefault((watcher, backlog.lane), set()).add(message.key)

    def on_passed(self, backlog: Backlog, watcher: int, by: object, *, is_evidence: bool) -> None:
        """It has moved past that message.

        Args:
            by: See `on_given`.
            is_evidence: Whether something derives from it, or it was rejected.
        """
        self._failed[backlog] -= 1
        if is_evidence:
            self._in_flight[watcher] += 1
            known = self._blamed.get(backlog)
            if known is None or known[2] is not by:
                self._blamed[backlog] = backlog.cursor, None, by

    def on_not_written(self) -> None:
        """A message could not be written as bytes: it is given once more."""
        self._blamed.clear()

    def count_failed(self, watcher: int, lane: int) -> int:
        """With how many others it has failed at most when it was tried for this lane."""
        counts = (
            count
            for backlog, count in self._failed.items()
            if backlog.watcher.watcher_id == watcher and backlog.lane == lane
        )
        return max(counts, default=0)

    def was_tried(self, watcher: int, lane: int, message: Message) -> bool:
        """Whether it was tried with this message, for one of this lane."""
        return message.key in self._tried.get((watcher, lane), ())

    # What is stored

    def check(
        self,
        before: Mapping[tuple[int, str], ParkedRow],
        set_aside: Iterable[ParkedRow],
        bodies: Collection[ParkedBody],
    ) -> None:
        """A transaction on parked messages has committed.

        Args:
            set_aside: What the owner of a stream has set aside in it.
            bodies: The bytes that there are.
        """
        self._check_bounds(before)
        for row in set_aside:
            self._check_evidence(row)
            self._check_single(row)
        referred = {row.body for row in self.rows.values()}
        if gone := referred.difference(bodies):
            self._fail("S13", f"the bytes of parked messages are gone: {sorted(gone)}")
        if left := set(bodies) - referred:
            self._fail("L5", f"bytes stay to which no parked message refers: {sorted(left)}")

    def _check_bounds(self, before: Mapping[tuple[int, str], ParkedRow]) -> None:
        """What has been parked since is within the bounds."""
        bounds, after = self.bounds, self.rows
        assert bounds is not None
        for watcher in {at[0] for at in after.keys() - before.keys()}:
            bodies = [row.body for at, row in after.items() if at[0] == watcher]
            count, size_bytes = len(bodies), size_of_bodies(bodies)
            if count > bounds.max_messages or size_bytes > bounds.max_bytes:
                self._fail(
                    "S9",
                    f"{count} messages with {size_bytes} bytes are parked for watcher {watcher}, of"
                    f" {bounds.max_messages} and {bounds.max_bytes}",
                )
        total, was = (
            size_of_bodies({row.body for row in rows.values()}) for rows in (after, before)
        )
        if self.has_one_stream and total > max(was, bounds.total_bytes):
            self._fail("S9", f"{total} bytes are parked of {bounds.total_bytes}")

    def _check_evidence(self, row: ParkedRow) -> None:
        """It has failed too often, and another one has been taken since, or it is hopeless."""
        at = row.watcher, row.message
        if self._is_hopeless(*at):
            return
        if not self.max_deliveries < row.failures <= self._given[at]:
            self._fail(
                "S13",
                f"{row.message} is set aside for watcher {row.watcher} after {row.failures} failures, and was given"
                f" {self._given[at]} times; others are tried after {self.max_deliveries}",
            )
        elif self._in_flight[row.watcher] <= self._taken_before[at]:
            self._fail(
                "S13",
                f"{row.message} is set aside for watcher {row.watcher}, which has taken no other since",
            )

    def _check_single(self, row: ParkedRow) -> None:
        """Two rows for one message are right only where its events were to be made again under another key."""
        for other in self.rows.values():
            is_same = other.watcher == row.watcher and other.message == row.message
            if is_same and other.key != row.key and not (other.is_reemitted or row.is_reemitted):
                self._fail("S13", f"{row.message} is parked twice for watcher {row.watcher}")
