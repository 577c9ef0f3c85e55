"""What is kept for one watcher in one lane of a queue, as far as it is known. Synchronous, no I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

from triggerer.domain.watchers.parked import StoredMessage


class StoredLane:
    """First it reads what is kept, in the order in which it was kept; then what is outstanding and not decided yet.

    A message is decided at the head of its lane: it is kept then, unless all that the watcher derived from it is
    durable. Numbers are those of the events in the group.
    """

    __slots__ = (
        "after",
        "arrivals",
        "decided_to",
        "failed_with",
        "given_before_stored",
        "handed_to",
        "in_flight_keys",
        "is_read_alone",
        "page",
        "passed",
        "pending_writes",
        "rereads",
        "resets",
        "resolved_early",
        "storing",
        "uncounted",
        "unread",
        "unread_writes",
    )

    def __init__(self, unread: float = math.inf) -> None:
        self.unread = unread
        """How many messages were not given to the filter yet, at most."""
        self.uncounted: set[str] = set()
        """The keys of those whose rows are not among `unread`: the filter had been given them when they were kept."""
        self.page: deque[StoredMessage] = deque()
        """Those that were read, and not all given to the filter, in order."""
        self.is_read_alone = False
        """Whether they are read for this lane alone, from `after` on; else with those of the watcher's other lanes."""
        self.after = 0
        """The id of the last message that was given to the filter."""
        self.arrivals = 0
        """Grows when there are more behind what was read."""
        self.resets = 0
        """Grows when there may be some before it."""
        self.rereads = 0
        """How often it began to read anew: what the filter was given before counts no more."""
        self.pending_writes = 0
        """Messages that are being kept."""
        self.unread_writes = 0
        """Those of them that the filter was not given: what comes after them is not read before them."""
        self.decided_to = 0
        """The number after the last event that was kept."""
        self.handed_to = 0
        """The number after the last event that was taken from memory for the filter."""
        self.given_before_stored: dict[int, str] = {}
        """By number the keys of events that were kept although the filter had been given them."""
        self.passed: list[str] = []
        """The keys of messages whose rows are to go."""
        self.storing: set[str] = set()
        """The keys of messages that are being kept."""
        self.resolved_early: set[str] = set()
        """Those of them that are dealt with: their rows go as soon as they are there."""
        self.in_flight_keys: set[str] = set()
        """The keys of messages that were given to the filter, and whose rows are not gone yet."""
        self.failed_with: str | None = None
        """The key of the message whose failures are counted, once the filter has failed with it."""

    @property
    def has_unread(self) -> bool:
        """Whether there may be messages that the filter was not given yet."""
        return self.unread > 0

    def mark_given(self, id_: int) -> None:
        """The filter was given all up to this one, or need not be."""
        self.after = id_
        while self.page and self.page[0].id <= id_:
            self._count_down(self.page.popleft())

    def _count_down(self, row: StoredMessage) -> None:
        if row.key in self.uncounted:
            self.uncounted.discard(row.key)
        else:
            self.unread = max(self.unread - 1, 0)

    def begin_storing(self, seq: int, key: str) -> int | None:
        """A message is being kept; what `end_storing` is to be told."""
        self.decided_to = seq + 1
        self.pending_writes += 1
        self.storing.add(key)
        if seq < self.handed_to:
            self.given_before_stored[seq] = key
            return self.rereads
        self.unread_writes += 1
        return None

    def end_storing(self, key: str, given_in: int | None, *, is_stored: bool) -> bool:
        """Note the store's answer; return whether there is a row now that nobody needs."""
        self.pending_writes -= 1
        self.storing.discard(key)
        is_needless = key in self.resolved_early
        self.resolved_early.discard(key)
        if given_in != self.rereads:
            self.unread_writes -= 1
        if is_needless:
            return is_stored
        if given_in == self.rereads and is_stored:
            self.uncounted.add(key)
        if given_in != self.rereads and is_stored:
            self.record_more()
        return False

    def mark_passed(self, key: str) -> None:
        """All that derives from a message that is kept, or is being kept, is durable."""
        if key in self.storing:
            # At a bound this may take long, and a row is not there to go before it was written.
            self.resolved_early.add(key)
        else:
            self.passed.append(key)

    def mark_set_aside(self, key: str) -> None:
        """The row of a message is not the filter's any more. By now it may be replayed, and it is not to go then."""
        if key in self.storing:
            self.resolved_early.add(key)
        else:
            self.mark_gone((key,))

    def mark_gone(self, keys: Collection[str]) -> None:
        """The rows of messages that it was given are gone, or set aside: what was read of them is old."""
        self.in_flight_keys.difference_update(keys)
        for row in [row for row in self.page if row.key in keys]:
            self.page.remove(row)
            self._count_down(row)
        self.uncounted.difference_update(keys)

    def record_more(self) -> None:
        """There are messages to be read behind those that were read."""
        self.unread += 1
        self.arrivals += 1

    def look_from_first(self) -> None:
        """Read from the first message on: somebody replays some that lie before those that were read."""
        self.after = 0
        self.unread = math.inf
        self.uncounted.clear()
        self.page.clear()
        self.is_read_alone = True
        self.resets += 1

    def read_again(self) -> None:
        """Read from the first message on: what was given to the filter last counts no more."""
        self.rereads += 1
        self.failed_with = None
        self.unread_writes = self.pending_writes
        self.handed_to = 0
        # What was given before that, and is on its way, still is: its row goes once it is dealt with.
        self.given_before_stored = {
            seq: key for seq, key in self.given_before_stored.items() if key in self.in_flight_keys
        }
        self.look_from_first()

    def begin(self) -> None:
        """Another reader begins with the first message of all lanes."""
        self.in_flight_keys.clear()
        self.read_again()
        self.is_read_alone = False
