"""Group commit: what arrives while a transaction is under way goes into the next one, together."""

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
    """Writes what waits as soon as the last group is written. `G` is a group: as many items as one transaction takes.

    A group that the store does not take now is written again as it was, after a delay: also where the outcome of its
    commit is unknown, so a repeat must not write anything twice. If the store refuses a group, the item that it means
    is found by halving.
    """

    retried: ClassVar[tuple[type[TriggererError], ...]] = (TransientStoreError,)
    """Errors after which the same group may be written later."""
    refusals: ClassVar[type[StoreError]]
    """An error that a repeat brings again. Where an error is both, it is retried; any other ends `run`."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._is_idle = False
        self._arrived = AutoResetEvent()

    def _wake(self) -> None:
        """Have `run` look for the next group; to be called when something arrives, if `_is_idle`."""
        self._is_idle = False
        self._arrived.set()

    async def run(self) -> None:
        """Write what is submitted until cancelled.

        Cancellation: A transaction that has not committed is rolled back. One that has is accounted for first.
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
        """Give the next group, which is then no longer waiting; None if nothing waits."""

    @abstractmethod
    async def _write(self, group: G) -> None:
        """Write a group in one transaction, and account for it.

        Raises:
            TriggererError: It was not written, or nobody knows.
        """

    @abstractmethod
    def _record_failure(self, error: TriggererError, delay: float) -> None:
        """A group was not written, or nobody knows; it is written again after `delay` seconds."""

    @abstractmethod
    def _halves(self, group: G) -> tuple[G, ...] | None:
        """The group in two; None if it is a single item. Or alone, without something that may have been refused."""

    @abstractmethod
    def _without_refused(self, group: G, error: StoreError) -> tuple[G, ...]:
        """What is to be written in place of a single item that was refused; empty: nothing, it is accounted for."""
