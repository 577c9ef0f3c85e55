"""One receiver of the SDK and its owner: the one task that receives, settles and renews with it.

The SDK's receivers are not made to be shared by tasks (its TROUBLESHOOTING.md). Others leave orders, and the owner's
wait for messages is interrupted.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio
from azure.servicebus import exceptions as sdk_errors

from producers.servicebus import sdk
from producers.servicebus.entity import EntityPath
from producers.servicebus.errors import guarded
from producers.servicebus.message import Delivery, delivery_of
from triggerer.errors import BrokerError, BrokerUnavailable

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusReceiver

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOST: Final = (
    sdk_errors.MessageLockLostError,
    sdk_errors.MessageAlreadySettled,
    sdk_errors.SessionLockLostError,
)
_LONGEST_WAIT_S = 15.0
_MAX_BATCH = 100
# A failed message keeps its lock until it may come again. So many do; those that fail beyond that come again at once.
_MAX_DELAYED = 1_000


class Settlement(Enum):
    """What a message's lock ends with."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    RELEASE = "release"
    DEAD_LETTER = "dead-letter"


@dataclass(slots=True, eq=False)
class Order:
    """What is to become of a message. `done` is called in the SDK's thread, once: it happened, or cannot any more."""

    delivery: Delivery
    settlement: Settlement
    done: Callable[[], None]
    delay_s: float = 0.0
    reason: str = ""
    description: str = ""


@dataclass(slots=True, eq=False)
class Held:
    """A message whose lock is ours."""

    delivery: Delivery
    locked_until: float
    """By the loop's clock."""
    delayed: bool = False
    """It has failed, and waits until it may come again; it counts no more as being in flight."""


class Surroundings(Protocol):
    """What a link needs of its `Stream`."""

    entity: EntityPath
    what: str
    request_timeout_s: float
    paused: bool

    @property
    def room(self) -> int:
        """How many more messages may come."""

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        """Take what has come."""

    def note_settled(self, count: int) -> None:
        """So many messages are in flight no more."""

    def session_idle_s(self) -> float:
        """How long an empty session is kept."""

    def hold_session(self, session_id: str, delay_s: float) -> None:
        """Deliver nothing of a session for so long, if it is us who accept it next."""


class SessionOver(Exception):
    """The session is to be given up: it is empty, a message of it failed, or its lock is lost."""


class Link:
    """A receiver's owner. With sessions it lives as long as one session's lock; otherwise it outlives receivers.

    Attributes:
        paused: Nothing more of it is to come for now.
    """

    def __init__(self, stream: Surroundings, *, session_id: str | None = None) -> None:
        self._stream = stream
        self._receiver: ServiceBusReceiver | None = None
        self.session_id = session_id
        self.paused = False
        self.closed = False
        self.held: dict[int, Held] = {}
        self._orders: deque[Order] = deque()
        self._wait: anyio.CancelScope | None = None
        # What is due when: the renewal of a lock, or (with an order) what was put off.
        self._due: list[tuple[float, int, Held, Order | None]] = []
        self._numbers = itertools.count()
        self._delayed = 0
        self._session_until = 0.0
        self._session_renew_at = 0.0
        self.quiet_since = anyio.current_time()
        self.not_before = 0.0

    @property
    def is_session(self) -> bool:
        return self.session_id is not None

    @property
    def _what(self) -> str:
        return self._stream.what

    # What others ask; all of it in the SDK's thread

    def leave(self, orders: Sequence[Order]) -> None:
        """Have messages settled. Those that are not held any more count as done: they come again."""
        if self.closed:
            for order in orders:
                order.done()
            return
        self._orders.extend(orders)
        self.poke()

    def poke(self) -> None:
        """Interrupt the wait for messages."""
        if self._wait is not None:
            self._wait.cancel()

    # The owner's task

    async def serve(self, receiver: ServiceBusReceiver) -> None:
        """Receive, settle and renew, until the receiver breaks.

        Raises:
            SessionOver: It is to be closed.
            BrokerUnavailable, BrokerRefused: It broke.
        """
        self._receiver = receiver
        if self.is_session:
            self._note_session_lock()
        while True:
            await self._settle()
            await self._renew()
            await self._receive()

    async def _receive(self) -> None:
        assert self._receiver is not None
        credit = self._credit()
        with anyio.CancelScope() as scope:
            self._wait = scope
            try:
                if self._orders:
                    return
                messages = await guarded(
                    sdk.listen(self._receiver, credit=credit, wait_s=self._longest_wait()),
                    self._what,
                    self._stream.entity,
                )
                self.take(messages)
            except BrokerUnavailable as error:
                self._raise_if_session_lost(error)
                raise
            finally:
                self._wait = None
        if self.is_session:
            self._end_if_idle()

    def _credit(self) -> int:
        now = anyio.current_time()
        if self.paused or self._stream.paused or now < self.not_before:
            return 0
        return min(_MAX_BATCH, self._stream.room)

    def _longest_wait(self) -> float:
        now = anyio.current_time()
        ends = [now + _LONGEST_WAIT_S]
        if self._due:
            ends.append(self._due[0][0])
        if self.is_session:
            ends.append(self._session_renew_at)
            if now < self.not_before:
                ends.append(self.not_before)
            if not self.held:
                ends.append(self.quiet_since + self._stream.session_idle_s())
        return max(0.001, min(ends) - now)

    def take(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Hold what has come, and hand it over."""
        if not messages:
            return
        now = anyio.current_time()
        deliveries = []
        for received in messages:
            delivery = delivery_of(received, self, self._stream.entity)
            before = self.held.get(delivery.sequence_number)
            if before is not None:
                self._lose(before)
            held = Held(delivery, now + _remaining_s(received.locked_until_utc))
            self.held[delivery.sequence_number] = held
            if not self.is_session:
                self._note_renewal(held, now)
            deliveries.append(delivery)
        self.quiet_since = now
        self._stream.hand_over(deliveries)

    # Locks

    def _note_renewal(self, held: Held, now: float) -> None:
        """Renew at half of what is left. Where nothing is (the clocks differ), at once."""
        at = now + max(0.0, held.locked_until - now) / 2
        self._push(at, held, None)

    def _push(self, at: float, held: Held, order: Order | None) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), held, order))

    async def _renew(self) -> None:
        """Renew what is due, and do what was put off until now."""
        if self.is_session:
            await self._renew_session()
        now = anyio.current_time()
        due: list[Held] = []
        while self._due and self._due[0][0] <= now:
            _, _, held, order = heapq.heappop(self._due)
            if not self._is_held(held):
                continue
            if order is None:
                due.append(held)
            else:
                self._orders.append(order)
        for start in range(0, len(due), _MAX_BATCH):
            await self._renew_together(due[start : start + _MAX_BATCH])

    def _is_held(self, held: Held) -> bool:
        return self.held.get(held.delivery.sequence_number) is held

    async def _renew_together(self, due: list[Held]) -> None:
        assert self._receiver is not None
        try:
            await self._call(sdk.renew(self._receiver, [one.delivery.received for one in due]))
        except sdk_errors.MessageLockLostError:
            if len(due) == 1:
                self._lose(due[0])
                return
            for one in due:
                await self._renew_together([one])
            return
        now = anyio.current_time()
        for one in due:
            one.locked_until = now + _remaining_s(one.delivery.received.locked_until_utc)
            self._note_renewal(one, now)

    def _note_session_lock(self) -> None:
        assert self._receiver is not None
        now = anyio.current_time()
        self._session_until = now + _remaining_s(self._receiver.session.locked_until_utc)
        self._session_renew_at = now + max(0.0, self._session_until - now) / 2

    async def _renew_session(self) -> None:
        assert self._receiver is not None
        if anyio.current_time() < self._session_renew_at:
            return
        try:
            await self._call(self._receiver.session.renew_lock())
        except sdk_errors.SessionLockLostError as error:
            raise SessionOver("its lock is lost") from error
        self._note_session_lock()

    def _raise_if_session_lost(self, error: BrokerUnavailable) -> None:
        if isinstance(error.__cause__, sdk_errors.SessionLockLostError):
            raise SessionOver("its lock is lost") from error

    def _lose(self, held: Held) -> None:
        """Another receiver may have it now. It comes again; its key absorbs what was stored of it."""
        logger.info(
            "%s: the lock on message %s is lost; it comes again", self._what, held.delivery.key
        )
        self._forget(held)

    def _forget(self, held: Held) -> None:
        if self._is_held(held):
            del self.held[held.delivery.sequence_number]
            if held.delayed:
                self._delayed -= 1
            else:
                self._stream.note_settled(1)

    def drop_all(self) -> None:
        """Hold nothing any more, and answer all orders: the locks are somebody else's, or nobody's."""
        for held in list(self.held.values()):
            self._forget(held)
        orders, self._orders = self._orders, deque()
        for order in orders:
            order.done()

    def drop_expired(self) -> None:
        """The same for what is locked no more, while there is no connection."""
        now = anyio.current_time()
        for held in [one for one in self.held.values() if one.locked_until <= now]:
            self._lose(held)
        gone = [order for order in self._orders if self._held_by(order) is None]
        for order in gone:
            self._orders.remove(order)
            order.done()

    # Settling

    async def _settle(self) -> None:
        while self._orders:
            together = self._completions()
            if together:
                await self._complete(together)
                continue
            order = self._orders[0]
            if order.delay_s > 0 and not self.is_session and self._delayed < _MAX_DELAYED:
                self._put_off(order)
            else:
                await self._settle_one(order)
            self._orders.popleft().done()

    def _held_by(self, order: Order) -> Held | None:
        held = self.held.get(order.delivery.sequence_number)
        # A message that came again is held as another delivery.
        return held if held is not None and held.delivery is order.delivery else None

    def _completions(self) -> list[Order]:
        """The completions at the head of the orders that can be made together."""
        assert self._receiver is not None
        together: list[Order] = []
        for order in itertools.islice(self._orders, _MAX_BATCH):
            if (
                order.settlement is not Settlement.COMPLETE
                or self._held_by(order) is None
                or not sdk.came_on(self._receiver, order.delivery.received)
            ):
                break
            together.append(order)
        return together

    async def _complete(self, orders: list[Order]) -> None:
        errors = await self._call(
            sdk.complete(self._receiver, [order.delivery.received for order in orders])
        )
        for order, error in zip(orders, errors, strict=True):
            self._orders.popleft()
            held = self._held_by(order)
            if held is not None:
                if error is None:
                    self._forget(held)
                else:
                    logger.info("%s: %s", self._what, error)
                    self._lose(held)
            order.done()

    def _put_off(self, order: Order) -> None:
        """Keep the lock, and do it later."""
        held = self._held_by(order)
        if held is None:
            return
        later = replace(order, delay_s=0.0, done=_nothing)
        self._push(anyio.current_time() + order.delay_s, held, later)
        held.delayed = True
        self._delayed += 1
        self._stream.note_settled(1)

    async def _settle_one(self, order: Order) -> None:
        held = self._held_by(order)
        if held is None:
            return
        receiver, received = self._receiver, order.delivery.received
        assert receiver is not None
        try:
            match order.settlement:
                case Settlement.COMPLETE:
                    await self._call(receiver.complete_message(received))
                case Settlement.ABANDON:
                    await self._call(receiver.abandon_message(received))
                case Settlement.DEAD_LETTER:
                    await self._call(
                        receiver.dead_letter_message(
                            received, reason=order.reason, error_description=order.description
                        )
                    )
                case Settlement.RELEASE:
                    await self._call(sdk.release(receiver, [received]))
        except (sdk_errors.MessageLockLostError, sdk_errors.MessageAlreadySettled):
            self._lose(held)
            return
        except sdk_errors.SessionLockLostError as error:
            raise SessionOver("its lock is lost") from error
        self._forget(held)
        if self.is_session and order.settlement in (Settlement.ABANDON, Settlement.RELEASE):
            # What follows it in the session must come after it: all of it is given back, and comes again in order.
            self._stream.hold_session(self.session_id or "", order.delay_s)
            raise SessionOver("a message of it failed")

    async def _call(self, call: Awaitable[T]) -> T:
        """Await the SDK, for so long as an answer may take.

        Raises: what is lost as the SDK says it; BrokerUnavailable, BrokerRefused.
        """
        timeout_s = self._stream.request_timeout_s
        try:
            with anyio.fail_after(timeout_s):
                return await guarded(call, self._what, self._stream.entity)
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self._what}: no answer in {timeout_s:g} s") from error
        except BrokerError as error:
            if isinstance(error.__cause__, _LOST):
                raise error.__cause__ from None
            raise

    def _end_if_idle(self) -> None:
        now = anyio.current_time()
        if self.held or self._orders or now < self.not_before:
            return
        if self.paused or self._stream.paused:
            self.quiet_since = now
        elif now >= self.quiet_since + self._stream.session_idle_s():
            raise SessionOver("it is empty")

    # The end

    async def let_go(self, receiver: ServiceBusReceiver) -> None:
        """Give back what is held: others get it at once, and no delivery is counted.

        A session's messages return with its lock.
        """
        if not self.is_session:
            late = await sdk.drain(receiver)
            held = [one.delivery.received for one in self.held.values()]
            await sdk.release(receiver, [*held, *late])


def _nothing() -> None:
    """Whoever ordered it has been answered."""


def _remaining_s(until: datetime | None) -> float:
    return 0.0 if until is None else (until - datetime.now(UTC)).total_seconds()
