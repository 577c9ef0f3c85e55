"""Tracks the stored messages of one watcher in one lane of a queue. Synchronous, no I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

from triggerer.domain.watchers.parked import StoredMessage


class StoredLane:
    """One watcher's progress in a lane: first through stored messages, then through outstanding ones in memory.

    Usually an outstanding message is stored when it reaches the head of its lane. It is not stored if the watcher has
    read it and all of its derived events are durable.
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
        """An upper bound for the number of stored messages that the filter has not received."""
        self.uncounted: set[str] = set()
        """Keys of rows that `unread` does not count, because the filter has received the messages from memory."""
        self.page: deque[StoredMessage] = deque()
        """The rows that were read from the store and that the filter has not received, in order."""
        self.is_read_alone = False
        """True: rows with ids above `after` are read for this lane alone. False: all lanes are read together."""
        self.after = 0
        """The id of the last message that the filter received."""
        self.arrivals = 0
        """How often a row was added after the rows that were already read."""
        self.resets = 0
        """How often the reading went back to the first row. Rows of a query from before the last reset are dropped."""
        self.rereads = 0
        """How often the filter began to receive all messages again, for example after a failure."""
        self.pending_writes = 0
        """The number of messages that are being stored."""
        self.unread_writes = 0
        """The number of messages being stored that the filter has not received. Later messages must wait for them."""
        self.decided_to = 0
        """The events before this number are decided: each is stored, is being stored, or needs no stored copy."""
        self.handed_to = 0
        """The number after the last event that the filter received from memory."""
        self.given_before_stored: dict[int, str] = {}
        """By event number, the keys of messages that the filter received before they were stored."""
        self.passed: list[str] = []
        """The keys of resolved messages whose rows must be deleted."""
        self.storing: set[str] = set()
        """The keys of messages that are being stored."""
        self.resolved_early: set[str] = set()
        """The keys of messages that are being stored, but are resolved already. Their rows are deleted afterwards."""
        self.in_flight_keys: set[str] = set()
        """The keys of messages that the filter received and whose rows still exist."""
        self.failed_with: str | None = None
        """The key of the message whose failures are counted."""

    @property
    def has_unread(self) -> bool:
        """Whether the store may hold messages that the filter has not received."""
        return self.unread > 0

    def mark_given(self, id_: int) -> None:
        """Record that the filter has received each row up to this id, or need not receive it."""
        self.after = id_
        while self.page and self.page[0].id <= id_:
            self._count_down(self.page.popleft())

    def _count_down(self, row: StoredMessage) -> None:
        if row.key in self.uncounted:
            self.uncounted.discard(row.key)
        else:
            self.unread = max(self.unread - 1, 0)

    def begin_storing(self, seq: int, key: str) -> int | None:
        """Record that a message is being stored.

        Returns:
            The argument `given_in` for `end_storing`: the number of the current reading (`rereads`) if the filter has
            received the message, otherwise None. A later reading must give the message to the filter again.
        """
        self.decided_to = seq + 1
        self.pending_writes += 1
        self.storing.add(key)
        if seq < self.handed_to:
            self.given_before_stored[seq] = key
            return self.rereads
        self.unread_writes += 1
        return None

    def end_storing(self, key: str, given_in: int | None, *, is_stored: bool) -> bool:
        """Record that the store has stored or refused a message.

        Return True if the message has been resolved meanwhile, so that its new row must be deleted.
        """
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
        """Record that every event of a stored message is durable, so that its row can be deleted."""
        if key in self.storing:
            # The message is being stored, so its row may not exist yet. `end_storing` asks for the deletion of the row.
            self.resolved_early.add(key)
        else:
            self.passed.append(key)

    def mark_parked(self, key: str) -> None:
        """Forget the row of a parked message. The row stays in the store, because an operator may replay it."""
        if key in self.storing:
            # `end_storing` asks for the deletion of the row, but the store deletes no parked row.
            self.resolved_early.add(key)
        else:
            self.mark_gone((key,))

    def mark_gone(self, keys: Collection[str]) -> None:
        """Record that these rows were deleted or parked, and drop them from `page`."""
        self.in_flight_keys.difference_update(keys)
        for row in [row for row in self.page if row.key in keys]:
            self.page.remove(row)
            self._count_down(row)
        self.uncounted.difference_update(keys)

    def record_more(self) -> None:
        """Record that a later row was added."""
        self.unread += 1
        self.arrivals += 1

    def restart_reading(self) -> None:
        """Read from the first row again, for example because an operator replays messages that were parked earlier."""
        self.after = 0
        self.unread = math.inf
        self.uncounted.clear()
        self.page.clear()
        self.is_read_alone = True
        self.resets += 1

    def read_again(self) -> None:
        """Read from the first row again: the filter must receive all messages again, for example after a failure."""
        self.rereads += 1
        self.failed_with = None
        self.unread_writes = self.pending_writes
        self.handed_to = 0
        # Keep the messages in flight, because their rows must be deleted once their events are durable.
        self.given_before_stored = {
            seq: key for seq, key in self.given_before_stored.items() if key in self.in_flight_keys
        }
        self.restart_reading()

    def begin(self) -> None:
        """Begin again for a new reader, which reads the rows of all lanes together, from the first row on."""
        self.in_flight_keys.clear()
        self.read_again()
        self.is_read_alone = False
