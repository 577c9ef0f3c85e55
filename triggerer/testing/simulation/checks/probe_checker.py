"""What must hold of a kept message that has failed too often: others are tried before it is given again (rule 18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Message, ParkedRow


class Lease(Protocol):
    """Under which a filter runs."""

    @property
    def parked_before(self) -> int:
        """The id of the last row that was parked before it began; others have greater ones."""


class ProbeChecker:
    """Looks at the first time that a filter is given a message of a queue under a lease.

    Afterwards it depends on what the trials have told whether others are tried once more.

    Args:
        fail: Called with the rule that was broken, and how.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self.max_deliveries: float = math.inf
        self.parked: Mapping[tuple[int, str], ParkedRow] = {}
        """By watcher and message the rows of the store."""
        self._fail = fail
        self._given: set[tuple[Lease, int, str]] = set()
        self._tried: set[tuple[Lease, int]] = set()

    def on_tried(self, lease: Lease, watcher: int) -> None:
        """A filter of the watcher's is tried with another message."""
        self._tried.add((lease, watcher))

    def on_given(self, lease: Lease, watcher: int, message: Message) -> None:
        """A filter of the watcher's that catches up is given a message whose events count."""
        at = lease, watcher, message.key
        if at in self._given:
            return
        self._given.add(at)
        row = self.parked.get((watcher, message.key))
        if row is None or not row.is_stored or row.was_set_aside:
            return
        if row.failures < self.max_deliveries or (lease, watcher) in self._tried:
            return
        others = [
            other.key
            for other in self.parked.values()
            if other.watcher == watcher
            and other.is_stored
            and other.key != row.key
            and other.body[0] == row.body[0]
            and other.id <= lease.parked_before
        ]
        if others:
            self._fail(
                "S13",
                f"watcher {watcher} has failed with {row.key} {row.failures} times, and is given it before any of"
                f" {sorted(others)} was tried",
            )
