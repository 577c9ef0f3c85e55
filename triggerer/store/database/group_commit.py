"""Group commit: everything that arrives while a transaction is under way goes into the next one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import ClassVar, Generic, TypeVar

from triggerer.backoff import Backoff, retry
from triggerer.errors import StoreError, TransientStoreError, TriggererError
from triggerer.synchronization import AutoResetEvent

G = TypeVar("G")


class GroupCommit(ABC, Generic[G]):
    """Writes items in groups. The items that arrive while one group is written form the next group.

    `G` is the type of a group. Each group is one transaction.

    - After an error that may pass, such as an outage or a commit with an unknown outcome, the unchanged group is
      written again. So writing a group twice must have the same effect as writing it once.
    - If the store refuses a group, the group is halved until the refused item is found.
    """

    retried: ClassVar[tuple[type[TriggererError], ...]] = (TransientStoreError,)
    """Errors after which the same group is written again later."""
    refusals: ClassVar[type[StoreError]]
    """Errors that every retry of the same group would raise. The group is halved.

    An error in both `retried` and `refusals` is retried. An error in neither ends `run`.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._is_idle = False
        self._arrived = AutoResetEvent()

    def _wake(self) -> None:
        """Make `run` look for the next group. A subclass calls it when an item arrives while `_is_idle` is true."""
        self._is_idle = False
        self._arrived.set()

    async def run(self) -> None:
        """Write submitted items until cancelled.

        Cancellation: A transaction that has not committed is rolled back. After a commit, `_write` still reports the
        outcome to the items.
        """
        while True:
            group = self._take()
            if group is None:
                self._is_idle = True
                await self._arrived.wait()
            else:
                await self._commit(group)

    async def _commit(self, group: G) -> None:
        parts = deque([group])
        while parts:
            part = parts.popleft()
            try:
                await retry(
                    partial(self._write, part),
                    on=self.retried,
                    backoff=self._backoff,
                    on_failure=self._record_failure,
                )
            except self.refusals as error:
                parts.extendleft(reversed(self._halves(part) or self._without_refused(part, error)))
            else:
                self._backoff.reset()

    @abstractmethod
    def _take(self) -> G | None:
        """Remove and return the next group of waiting items, or None if nothing waits."""

    @abstractmethod
    async def _write(self, group: G) -> None:
        """Write a group in one transaction, then report the outcome to each item of the group.

        Raises:
            TriggererError: The group was not written, or the outcome is unknown.
        """

    @abstractmethod
    def _record_failure(self, error: TriggererError, delay: float) -> None:
        """Record that a write failed or has an unknown outcome. The group is written again after `delay` seconds."""

    @abstractmethod
    def _halves(self, group: G) -> tuple[G, ...] | None:
        """Return smaller groups to write instead, or None if the group is a single item."""

    @abstractmethod
    def _without_refused(self, group: G, error: StoreError) -> tuple[G, ...]:
        """Report that the store refused this single item; return groups to write instead, often none."""
