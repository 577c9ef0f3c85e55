"""Checks that the runtime tries other messages as probes, if a stored message has failed too often (rule 18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Message, ParkedRow


class Lease(Protocol):
    """The lease under which a filter runs."""

    @property
    def parked_before(self) -> int:
        """The highest id of a parked row when the lease began."""


class ProbeChecker:
    """Checks rule S13: before a filter gets a stored message that has failed too often, another message is tried.

    Each message is checked only when a filter first gets it under a lease. Later attempts depend on the results of
    probes.

    Args:
        fail: Called with the broken rule and the details.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self.max_deliveries: float = math.inf
        self.parked: Mapping[tuple[int, str], ParkedRow] = {}
        """The store's rows, by watcher and message."""
        self._fail = fail
        self._given: set[tuple[Lease, int, str]] = set()
        self._tried: set[tuple[Lease, int]] = set()

    def on_tried(self, lease: Lease, watcher: int) -> None:
        """Record a probe: a filter of the watcher gets another message."""
        self._tried.add((lease, watcher))

    def on_given(self, lease: Lease, watcher: int, message: Message) -> None:
        """Check a message that the watcher's catch-up gives to its filter, other than a probe."""
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
                f"watcher {watcher} failed with {row.key} {row.failures} times and gets it again, but none of"
                f" {sorted(others)} was probed before",
            )
