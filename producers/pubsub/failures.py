"""Counts how often messages have failed. Synchronous, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

_MOST: Final = 50_000


class Failures:
    """Counts how often each message has failed. Only the `most` messages that failed last are remembered.

    The counts are in memory, so they begin at zero after a restart. Pub/Sub's own counts, for a subscription's
    dead-letter policy, survive a restart.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, message_id: str) -> int:
        """Count a failure; return the number of failures so far."""
        count = self._counts.pop(message_id, 0) + 1
        self._counts[message_id] = count
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)
        return count

    def get(self, message_id: str) -> int:
        return self._counts.get(message_id, 0)

    def forget(self, message_id: str) -> None:
        self._counts.pop(message_id, None)

    def forget_all(self, message_ids: Iterable[str]) -> None:
        if self._counts:
            for message_id in message_ids:
                self._counts.pop(message_id, None)
