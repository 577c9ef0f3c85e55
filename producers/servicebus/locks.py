"""The locks of one receiver: on each message by itself, or on a session and with it on all its messages."""

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
"""Messages that one request settles or renews."""
_SOONEST_S: Final = 0.05
"""The shortest distance of renewals."""
_OVER_S: Final = 0.25
"""The same where a lock is over by this machine's clock, as each is when it comes if that is ahead."""
# A failed message keeps its lock until it may come again. So many do; those that fail beyond that come again at once.
_MAX_DELAYED = 1_000


class SessionOver(Exception):
    """The session is to be given up: it is empty, a message of it failed, or its lock is lost."""


@dataclass(slots=True, eq=False)
class Held:
    """A message whose lock is ours."""

    delivery: Delivery
    locked_until: float
    """By the loop's clock."""
    delayed: bool = False
    """It has failed, and waits until it may come again; it counts no more as being in flight."""


class MessageLocks:
    """The messages that are held.

    Args:
        are_renewed: Whether each has a lock of its own; in a session, that of the session holds them all.
        note_settled: Called with the number of messages that are in flight no more.
    """

    def __init__(
        self, calls: Calls, mark_settled: Callable[[int], None], *, are_renewed: bool
    ) -> None:
        self._calls = calls
        self._mark_settled = mark_settled
        self._are_renewed = are_renewed
        self._held: dict[int, Held] = {}
        # What is due when: the renewal of a lock, or what was put off.
        self._due: list[tuple[float, int, Held, Callable[[], None] | None]] = []
        self._numbers = itertools.count()
        self._delayed = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    @property
    def may_delay(self) -> bool:
        """Whether one more failed message may keep its lock until it comes again."""
        return self._are_renewed and self._delayed < _MAX_DELAYED

    @property
    def due_at(self) -> float | None:
        """When `do_what_is_due` has something to do."""
        return self._due[0][0] if self._due else None

    def find(self, sequence_number: int) -> Held | None:
        return self._held.get(sequence_number)

    def of(self, delivery: Delivery) -> Held | None:
        """The lock of this delivery. A message that was handed over again is held as another delivery."""
        held = self._held.get(delivery.sequence_number)
        return held if held is not None and held.delivery is delivery else None

    def add(self, delivery: Delivery, now: float) -> None:
        """Hold a message that has come."""
        before = self._held.get(delivery.sequence_number)
        if before is not None:
            self.lose(before)
        held = Held(delivery, now + remaining_s(delivery.received.locked_until_utc))
        self._held[delivery.sequence_number] = held
        if self._are_renewed:
            self._record_renewal(held, now)

    def delay(self, held: Held, delay_s: float, then: Callable[[], None]) -> None:
        """Keep the lock of a failed message, and call `then` after the delay if it is still held."""
        self._push(anyio.current_time() + delay_s, held, then)
        held.delayed = True
        self._delayed += 1
        self._mark_settled(1)

    def _record_renewal(self, held: Held, now: float) -> None:
        self._push(_half_of(held.locked_until, now), held, None)

    def _push(self, at: float, held: Held, then: Callable[[], None] | None) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), held, then))

    async def do_what_is_due(self, receiver: ServiceBusReceiver) -> None:
        """Renew what is due, and do what was put off until now."""
        now = anyio.current_time()
        due: list[Held] = []
        while self._due and self._due[0][0] <= now:
            _, _, held, then = heapq.heappop(self._due)
            if not self._is_held(held):
                continue
            if then is None:
                due.append(held)
            else:
                then()
        for start in range(0, len(due), MAX_BATCH):
            await self._renew_together(receiver, due[start : start + MAX_BATCH])

    async def _renew_together(self, receiver: ServiceBusReceiver, due: list[Held]) -> None:
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

    def _is_held(self, held: Held) -> bool:
        return self._held.get(held.delivery.sequence_number) is held

    def lose(self, held: Held) -> None:
        """Another receiver may have it now. It comes again; its key absorbs what was stored of it."""
        logger.info(
            "%s: the lock on message %s is lost; it comes again",
            self._calls.what,
            held.delivery.key,
        )
        self.forget(held)

    def forget(self, held: Held) -> None:
        """It is settled, or its lock is ours no more."""
        if self._is_held(held):
            del self._held[held.delivery.sequence_number]
            if held.delayed:
                self._delayed -= 1
            else:
                self._mark_settled(1)

    def forget_all(self) -> None:
        for held in self:
            self.forget(held)

    def lose_expired(self) -> None:
        """Hold no more what is locked no more."""
        now = anyio.current_time()
        for held in [one for one in self if one.locked_until <= now]:
            self.lose(held)


class SessionLock:
    """The lock of the session that a receiver has accepted."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.renew_at = 0.0

    def note(self, receiver: ServiceBusReceiver) -> None:
        """It was accepted or renewed."""
        now = anyio.current_time()
        self.renew_at = _half_of(now + remaining_s(receiver.session.locked_until_utc), now)

    async def renew_if_due(self, receiver: ServiceBusReceiver) -> None:
        """Renew it.

        Raises:
            SessionOver: It is lost.
            BrokerUnavailable, BrokerRefused: The receiver broke.
        """
        if anyio.current_time() < self.renew_at:
            return
        try:
            await self._calls(receiver.session.renew_lock())
        except sdk_errors.SessionLockLostError as error:
            raise SessionOver("its lock is lost") from error
        self.note(receiver)


def _half_of(locked_until: float, now: float) -> float:
    """When a lock is renewed: when half of what is left of it is over."""
    left = locked_until - now
    return now + (max(_SOONEST_S, left / 2) if left > 0 else _OVER_S)


def remaining_s(until: datetime | None) -> float:
    """How long a lock still lasts, by this machine's clock."""
    return 0.0 if until is None else (until - datetime.now(UTC)).total_seconds()
