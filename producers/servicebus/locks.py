"""The locks of one receiver: one for each message, or one for a session and all its messages."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import anyio
from azure.servicebus import exceptions as sdk_errors

from producers.servicebus.message import Delivery
from producers.servicebus.sdk import client as sdk
from producers.servicebus.sdk.calls import Calls

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusReceiver

logger = logging.getLogger(__name__)

MAX_BATCH: Final = 100
"""The most messages that one request settles or renews."""
_SOONEST_S: Final = 0.05
"""The shortest time between two renewals of a lock."""
_OVER_S: Final = 0.25
"""The time until the next renewal if a new lock seems to have ended already, because this machine's clock is ahead."""
# The most failed messages of one receiver that keep their locks until their redelivery is due. Further failed messages
# come again at once.
_MAX_DELAYED = 1_000


class SessionOver(Exception):
    """The session must be closed, because it is empty, one of its messages failed, or its lock is lost."""


@dataclass(slots=True, eq=False)
class LockedMessage:
    """A message that one of our receivers has locked."""

    delivery: Delivery
    locked_until: float
    """The end of the lock, by the loop's clock."""
    delayed: bool = False
    """True if the message failed and waits for its redelivery. Then it no longer counts as in flight."""


class MessageLocks:
    """The locked messages of one receiver.

    Args:
        mark_settled: Called with the number of messages that are no longer in flight.
        are_renewed: Whether each message has its own lock, which this object renews. False: the lock of the session
            applies to all messages.
    """

    def __init__(
        self, calls: Calls, mark_settled: Callable[[int], None], *, are_renewed: bool
    ) -> None:
        self._calls = calls
        self._mark_settled = mark_settled
        self._are_renewed = are_renewed
        self._locked: dict[int, LockedMessage] = {}
        # A heap, sorted by due time. An item with a function is a call that `delay` has put off. An item without a
        # function is the planned renewal of a lock.
        self._due: list[tuple[float, int, LockedMessage, Callable[[], None] | None]] = []
        self._numbers = itertools.count()
        self._delayed = 0

    def __len__(self) -> int:
        return len(self._locked)

    def __iter__(self) -> Iterator[LockedMessage]:
        return iter(list(self._locked.values()))

    @property
    def may_delay(self) -> bool:
        """True if a further failed message can keep its lock until its redelivery."""
        return self._are_renewed and self._delayed < _MAX_DELAYED

    @property
    def due_at(self) -> float | None:
        """The time at which `do_what_is_due` has something to do. None: no renewal and no call is planned."""
        return self._due[0][0] if self._due else None

    def find(self, sequence_number: int) -> LockedMessage | None:
        return self._locked.get(sequence_number)

    def of(self, delivery: Delivery) -> LockedMessage | None:
        """Return the locked message of this delivery; None if the lock is lost, or belongs to a later delivery."""
        locked = self._locked.get(delivery.sequence_number)
        return locked if locked is not None and locked.delivery is delivery else None

    def add(self, delivery: Delivery, now: float) -> None:
        """Add a message that was received with a lock."""
        before = self._locked.get(delivery.sequence_number)
        if before is not None:
            self.lose(before)
        locked = LockedMessage(delivery, now + remaining_s(delivery.received.locked_until_utc))
        self._locked[delivery.sequence_number] = locked
        if self._are_renewed:
            self._record_renewal(locked, now)

    def delay(self, locked: LockedMessage, delay_s: float, then: Callable[[], None]) -> None:
        """Keep the lock of a failed message. After the delay, call `then` if the lock still exists."""
        self._push(anyio.current_time() + delay_s, locked, then)
        locked.delayed = True
        self._delayed += 1
        self._mark_settled(1)

    def _record_renewal(self, locked: LockedMessage, now: float) -> None:
        self._push(_half_of(locked.locked_until, now), locked, None)

    def _push(self, at: float, locked: LockedMessage, then: Callable[[], None] | None) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), locked, then))

    async def do_what_is_due(self, receiver: ServiceBusReceiver) -> None:
        """Renew the locks whose renewal is due, and call the functions that `delay` has put off until now.

        A function is not called if its message was settled or lost its lock meanwhile.
        """
        now = anyio.current_time()
        due: list[LockedMessage] = []
        while self._due and self._due[0][0] <= now:
            _, _, locked, then = heapq.heappop(self._due)
            if not self._is_locked(locked):
                continue
            if then is None:
                due.append(locked)
            else:
                then()
        for start in range(0, len(due), MAX_BATCH):
            await self._renew_together(receiver, due[start : start + MAX_BATCH])

    async def _renew_together(self, receiver: ServiceBusReceiver, due: list[LockedMessage]) -> None:
        try:
            await self._calls(sdk.renew(receiver, [one.delivery.received for one in due]))
        except sdk_errors.MessageLockLostError:
            if len(due) == 1:
                self.lose(due[0])
                return
            for one in due:
                await self._renew_together(receiver, [one])
            return
        now = anyio.current_time()
        for one in due:
            one.locked_until = now + remaining_s(one.delivery.received.locked_until_utc)
            self._record_renewal(one, now)

    def _is_locked(self, locked: LockedMessage) -> bool:
        return self._locked.get(locked.delivery.sequence_number) is locked

    def lose(self, locked: LockedMessage) -> None:
        """Drop a lost lock. The message comes again."""
        logger.info(
            "%s: the lock on message %s is lost; the message comes again",
            self._calls.what,
            locked.delivery.key,
        )
        self.forget(locked)

    def forget(self, locked: LockedMessage) -> None:
        """Remove a message that was settled, or whose lock is lost."""
        if self._is_locked(locked):
            del self._locked[locked.delivery.sequence_number]
            if locked.delayed:
                self._delayed -= 1
            else:
                self._mark_settled(1)

    def forget_all(self) -> None:
        for locked in self:
            self.forget(locked)

    def lose_expired(self) -> None:
        """Drop the messages whose locks have expired."""
        now = anyio.current_time()
        for locked in [one for one in self if one.locked_until <= now]:
            self.lose(locked)


class SessionLock:
    """The lock of the session that a receiver has accepted."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.renew_at = 0.0

    def mark_renewed(self, receiver: ServiceBusReceiver) -> None:
        """Record that the session was accepted or its lock renewed."""
        now = anyio.current_time()
        self.renew_at = _half_of(now + remaining_s(receiver.session.locked_until_utc), now)

    async def renew_if_due(self, receiver: ServiceBusReceiver) -> None:
        """Renew the session's lock if that is due.

        Raises:
            SessionOver: The lock is lost.
            BrokerUnavailable, BrokerRefused: The receiver broke.
        """
        if anyio.current_time() < self.renew_at:
            return
        try:
            await self._calls(receiver.session.renew_lock())
        except sdk_errors.SessionLockLostError as error:
            raise SessionOver("its lock is lost") from error
        self.mark_renewed(receiver)


def _half_of(locked_until: float, now: float) -> float:
    """Return when to renew a lock: after half of its remaining time."""
    left = locked_until - now
    return now + (max(_SOONEST_S, left / 2) if left > 0 else _OVER_S)


def remaining_s(until: datetime | None) -> float:
    """Return the remaining time of a lock, by this machine's clock."""
    return 0.0 if until is None else (until - datetime.now(UTC)).total_seconds()
