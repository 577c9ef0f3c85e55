"""A tiny runtime for one producer: pulls its stream, resolves messages as a test case decides, and advances lanes."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from types import coroutine
from typing import Any

import anyio

from triggerer.abc import AdvanceItem, AdvanceOutcome, SharedStreamProducer
from triggerer.synchronization import Notifier

ACKED = AdvanceOutcome(acked=1, failed=0, rejected=0)
FAILED = AdvanceOutcome(acked=0, failed=1, rejected=0)
UNREAD = AdvanceOutcome(acked=0, failed=1, rejected=0, unread=1)
"""A failure that does not blame the message: the watcher failed at another message before it pulled this one."""
REJECTED = AdvanceOutcome(acked=0, failed=0, rejected=1)
NOBODY = AdvanceOutcome(acked=0, failed=0, rejected=0)
"""The outcome of a message that was broadcast to no subscriber."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message, with its idempotency key. A redelivered message has several deliveries."""

    value: str
    payload: Any
    lane: Hashable
    key: str | None


Resolve = Callable[[Delivery], AdvanceOutcome | None]
"""Returns the outcome of a delivery, or None to leave the delivery unresolved.

The lane's position does not move past an unresolved delivery, but the lane's later messages are delivered. The driver
calls the function again for the unresolved delivery with each of them, and when the test case calls `Driver.advance`.
"""


class Driver:
    """Records the deliveries of a producer, in order, and advances them. Made by `driving`."""

    def __init__(
        self,
        producer: SharedStreamProducer,
        *,
        value_of: Callable[[Any], str | None],
        resolve: Resolve,
        patience_s: float,
    ) -> None:
        self.producer = producer
        self.resolve = resolve
        self.deliveries: list[Delivery] = []
        self.events: list[Any] = []
        """The raw events of the deliveries."""
        self.advanced: list[tuple[Delivery, AdvanceOutcome]] = []
        self.before_pull: Callable[[], Awaitable[None]] | None = None
        """Awaited after each event, before the next pull."""
        self._value_of = value_of
        self._patience_s = patience_s
        self._error: Exception | None = None
        self._changed = Notifier()
        self._lanes: dict[Hashable, list[tuple[Delivery | None, Any]]] = {}
        self._advancing: dict[Hashable, anyio.Event] = {}
        self._one_at_a_time = anyio.Lock()

    @property
    def values(self) -> list[str]:
        return [delivery.value for delivery in self.deliveries]

    def pending(self) -> list[list[Any]]:
        """The broker payloads that are not advanced: one list for each lane."""
        return [payloads for _, payloads in self.pending_by_lane()]

    def pending_by_lane(self) -> list[tuple[list[str], list[Any]]]:
        """The deliveries that are not advanced: for each lane its values and its broker payloads."""
        lanes = [lane for lane in self._lanes.values() if lane]
        return [
            ([one.value for one, _ in lane if one], [each for _, each in lane]) for lane in lanes
        ]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until `condition`, which is checked after each delivery and each advance, is true.

        Raises:
            AssertionError: The condition did not become true within the suite's `patience_s`.
            Exception: The error that the producer raised in the meantime.
        """
        with anyio.move_on_after(self._patience_s):
            while not condition():
                self._raise_if_failed()
                await self._changed.wait()
            return
        raise AssertionError(
            f"did not happen within {self._patience_s:g} s: {what}; delivered so far: {self.values}"
        )

    async def count(self, number: int) -> None:
        """Wait until there were at least `number` deliveries."""
        await self.until(lambda: len(self.deliveries) >= number, f"{number} deliveries")

    async def advanced_count(self, number: int) -> None:
        """Wait until at least `number` deliveries were advanced."""
        await self.until(lambda: len(self.advanced) >= number, f"{number} advances")

    async def ends_with(self, kind: type[Exception]) -> None:
        """Wait until the producer has raised an error of this kind. Later waits do not raise this error."""
        with anyio.move_on_after(self._patience_s):
            while self._error is None:
                await self._changed.wait()
        assert isinstance(self._error, kind), f"expected {kind.__name__}, got {self._error!r}"
        self._error = None

    async def stay_quiet(self, seconds: float) -> None:
        """Wait for `seconds`, and raise an error that the producer raised meanwhile."""
        await anyio.sleep(seconds)
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    async def run(self) -> None:
        """Pull until the caller cancels, or the producer raises."""
        async with anyio.create_task_group() as tasks:
            stream = self.producer.open_stream()
            assert isinstance(stream, AsyncGenerator), "open_stream() is not an async generator"
            if type(self.producer).run is not SharedStreamProducer.run:
                tasks.start_soon(self._run_producer)
            try:
                async with aclosing(stream):
                    async for event, payload in stream:
                        self._take(event, payload)
                        self._start_advancing(tasks, self.producer.get_advance_lane(payload))
                        if self.before_pull is not None:
                            await self.before_pull()
                raise AssertionError("open_stream() returned")
            except Exception as error:  # noqa: BLE001  (raised in the task that waits for the producer)
                self._record_error(error)
            tasks.cancel_scope.cancel()

    async def _run_producer(self) -> None:
        try:
            await self.producer.run()
            raise AssertionError("run() returned")
        except Exception as error:  # noqa: BLE001  (raised in the task that waits for the producer)
            self._record_error(error)

    def _take(self, event: Any, payload: Any) -> None:
        value = self._value_of(event)
        lane = self.producer.get_advance_lane(payload)
        delivery = None
        if value is not None:
            key = self.producer.get_idempotency_key(payload)
            delivery = Delivery(value, payload, lane, key)
            self.deliveries.append(delivery)
            self.events.append(event)
        self._lanes.setdefault(lane, []).append((delivery, payload))
        self._changed.notify_all()

    def _record_error(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._changed.notify_all()

    def _start_advancing(self, tasks: anyio.abc.TaskGroup, lane: Hashable) -> None:
        if lane not in self._advancing:
            self._advancing[lane] = anyio.Event()
            tasks.start_soon(self._advance_lane, lane)

    async def advance(self) -> None:
        """Call `resolve` again for the unresolved deliveries, and return once all resolved deliveries are advanced."""
        for is_done in list(self._advancing.values()):
            await is_done.wait()
        async with anyio.create_task_group() as tasks:
            for lane in list(self._lanes):
                self._start_advancing(tasks, lane)
        self._raise_if_failed()

    async def _advance_lane(self, lane: Hashable) -> None:
        try:
            while batch := self._ready(lane):
                del self._lanes[lane][: len(batch)]
                items = [AdvanceItem(payload, outcome) for _, payload, outcome in batch]
                if not self.producer.lanes_advance_side_by_side:
                    async with self._one_at_a_time:
                        await self.producer.advance(items)
                elif advances_together(self.producer):
                    await self.producer.advance_lanes([items])
                else:
                    await self.producer.advance(items)
                self.advanced += [(one, outcome) for one, _, outcome in batch if one is not None]
                self._changed.notify_all()
        except Exception as error:  # noqa: BLE001  (raised in the task that waits for the producer)
            self._record_error(error)
        finally:
            self._advancing.pop(lane).set()

    def _ready(self, lane: Hashable) -> list[tuple[Delivery | None, Any, AdvanceOutcome]]:
        batch = []
        for delivery, payload in self._lanes[lane]:
            # An event that is not a message only informs the filters. No case resolves it, so it counts as acked.
            outcome = ACKED if delivery is None else self.resolve(delivery)
            if outcome is None:
                break
            batch.append((delivery, payload, outcome))
        return batch


def advances_together(producer: SharedStreamProducer) -> bool:
    """Whether the runtime calls the producer's `advance_lanes` instead of its `advance`."""
    return type(producer).advance_lanes is not SharedStreamProducer.advance_lanes


@asynccontextmanager
async def driving(
    producer: SharedStreamProducer,
    *,
    value_of: Callable[[Any], str | None],
    resolve: Resolve,
    patience_s: float,
) -> AsyncIterator[Driver]:
    """Run a producer while the block lasts, then close it once.

    Raises:
        AssertionError: `aclose` took longer than `patience_s`.
    """
    driver = Driver(producer, value_of=value_of, resolve=resolve, patience_s=patience_s)
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.run)
            try:
                yield driver
            except Exception as error:  # noqa: BLE001  (raised below as it is, not in a group)
                failure = error
            tasks.cancel_scope.cancel()
    finally:
        await close(producer, patience_s)
    if failure is not None:
        raise failure


async def close(producer: SharedStreamProducer, patience_s: float) -> None:
    """Close the producer as the runtime does: shielded from cancellation, with a limit of `patience_s` seconds.

    Raises:
        AssertionError: `aclose` took longer.
    """
    with anyio.move_on_after(patience_s, shield=True) as scope:
        await producer.aclose()
    assert not scope.cancelled_caught, f"aclose() took longer than {patience_s:g} s"


class CancelledAt(Enum):
    """The result of an attempt to cancel work at one of its awaits."""

    CANCELLED = auto()
    NOT_REACHED = auto()
    """The work ended before it reached the await."""
    TOO_LATE = auto()
    """The await had its result (for example from a thread) before the cancellation came. The work ended uncancelled."""


async def cancelled_at(work: Coroutine[Any, Any, None], wait: int) -> CancelledAt:
    """Run `work` and cancel it at its `wait`-th await."""
    with anyio.CancelScope() as scope:
        await _counting_waits(work, wait, scope)
    if scope.cancelled_caught:
        return CancelledAt.CANCELLED
    return CancelledAt.TOO_LATE if scope.cancel_called else CancelledAt.NOT_REACHED


@coroutine
def _counting_waits(
    work: Coroutine[Any, Any, None], wait: int, scope: anyio.CancelScope
) -> Generator[Any, Any, None]:
    waits = 0
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            awaited = work.send(answer) if error is None else work.throw(error)
        except StopIteration:
            return
        waits += 1
        if waits == wait:
            scope.cancel()
        answer = error = None
        try:
            answer = yield awaited
        except BaseException as thrown:  # noqa: BLE001  (thrown into the work at once)
            error = thrown
