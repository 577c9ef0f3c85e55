"""One trigger's place on a shared stream: what its filter reads, what it derives, and how it ends."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum, auto
from typing import Any

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token

from triggerer.abc import (
    BaseEventTrigger,
    SharedStreamSelector,
    TriggerEvent,
    current_subscriber,
)
from triggerer.domain.events import EventSink, EventSource
from triggerer.errors import PluginError
from triggerer.runtime.cancellation import plugin_code
from triggerer.runtime.lanes import Entry
from triggerer.runtime.ledger import IDLE, Member
from triggerer.runtime.pending_limit import PendingLimit
from triggerer.runtime.selection import selector_of
from triggerer.runtime.state import GroupState


class _Completed(Enum):
    COMPLETED = auto()


_COMPLETED = _Completed.COMPLETED
_new_derived = object.__new__


class DerivedEvent:
    """A `TriggerEvent` on its way into the store, tied to the raw event that was open when the filter yielded it.

    Implements `triggerer.domain.events.PendingEvent`. There may be very many of these while the store lags, so that
    they hold no more than they must, 56 bytes; those of a subscriber form a chain, in the order of their derivation.
    """

    __slots__ = ("entry", "next", "subscriber")

    subscriber: Subscriber
    entry: Entry | _Completed | None
    next: DerivedEvent | None
    """The subscriber's next one, until this one is complete and none before it is pending."""

    @property
    def overdue_since(self) -> float:
        """When its message was broadcast; infinite where nothing waits for it."""
        return self.entry.broadcast_at if isinstance(self.entry, Entry) else math.inf

    def complete(self, error: Exception | None) -> None:
        """The store's answer, which comes once."""
        subscriber = self.subscriber
        pending = subscriber.pending
        pending.count -= 1
        if pending.is_awaited:
            pending.note_room()
        entry = self.entry
        if entry is _COMPLETED:
            return
        self.entry = _COMPLETED
        if error is not None and subscriber.on_refused is not None:
            subscriber.on_refused(error)
        if entry is None:
            return
        if subscriber.oldest_pending is self:
            # It leaves the chain, and so do those behind it that were completed before it.
            following, self.next = self.next, None
            while following is not None and following.entry is _COMPLETED:
                following = following.next
            subscriber.oldest_pending = following
        if error is not None:
            subscriber.state.ledger.refuse(subscriber, entry)
        entry.unresolved -= 1
        if not entry.unresolved:
            lane = entry.lane
            # Those behind their lane's head are found when the head is advanced.
            if lane is not None and lane.head is entry:
                state = subscriber.state
                state.lanes.queue(lane)
                if not state.progress.is_noted:
                    state.progress.note()
        if not subscriber.is_present and subscriber.oldest_pending is None:
            subscriber.on_departed(subscriber)

    def abandon(self, error: Exception) -> None:
        """Refuse it without the store's answer, which may still come; until it does, the store holds it."""
        self.subscriber.pending.count += 1
        self.complete(error)


class Subscriber(Member):
    """A member of a group, together with the stream that its filter reads.

    `run` drives the filter and returns or raises when it ends; whoever runs it then decides what that means
    (`Subscribers.fail`, `Subscribers.leave`). It may be ended from outside by `interrupt`.
    """

    __slots__ = (
        "_loop",
        "_loop_thread",
        "_newest",
        "_scope",
        "_sink",
        "_token",
        "_waiter",
        "error",
        "is_open",
        "may_read",
        "name",
        "oldest_pending",
        "on_departed",
        "on_refused",
        "open_entry",
        "ordinal",
        "pending",
        "pulled",
        "source",
        "state",
        "trigger",
        "wanted",
    )

    def __init__(
        self,
        state: GroupState,
        trigger: BaseEventTrigger,
        *,
        name: str,
        source: EventSource,
        sink: EventSink,
        pending: PendingLimit,
        on_refused: Callable[[Exception], None] | None,
        on_departed: Callable[[Subscriber], None],
    ) -> None:
        super().__init__()
        self.state = state
        self.pending = pending
        self.trigger = trigger
        self.name = name
        self.source = source
        self.on_refused = on_refused
        self.on_departed = on_departed
        """Called when it is not present, and the store owes it nothing any more."""
        self.error: BaseException | None = None
        """What ended it; set before its filter learns of it."""
        self.may_read = True
        """Whether it is neither ended nor gone."""
        self.pulled = 0
        """The number of the first event that the filter has not been given; `IDLE` while it is idle."""
        self.wanted: deque[int] | None = None
        """The numbers of the events that concern its filter; None where all do."""
        self.is_open = False
        """Whether the filter has pulled an event and has not pulled the next."""
        self.open_entry: Entry | None = None
        self.ordinal = 0
        """How many events its filter has derived from the one that it has open, besides the one that is submitted."""
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._scope = anyio.CancelScope()
        self.oldest_pending: DerivedEvent | None = None
        """The first of its events, among those that a message waits for, that the store has not answered for."""
        self._newest: DerivedEvent | None = None
        self._loop_thread = threading.get_ident()
        self._token = current_token()

    # What the group asks and tells

    def start_at(self, seq: int) -> None:
        self.pulled = seq

    def wake(self) -> None:
        """There is something to read, or it is to end; does nothing unless its filter awaits the stream."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def interrupt(self, error: BaseException) -> bool:
        """End it with `error`: raised where the filter awaits the stream, by cancelling it where it is elsewhere.

        Returns:
            Whether the filter is told where it awaits the stream. It may go on all the same; see `cancel`.
        """
        if self.error is not None:
            return False
        self.error = error
        self.may_read = False
        if self._waiter is None:
            self._scope.cancel()
            return False
        self.wake()
        return True

    def cancel(self) -> None:
        """Cancel its filter, wherever it is."""
        self._scope.cancel()

    def offer(self, seq: int) -> None:
        """Its selector names what was broadcast."""
        assert self.wanted is not None
        self.wanted.append(seq)
        if self.done == IDLE:
            self.pulled = seq
            self.state.ledger.mark_active(self, seq)
            self.wake()

    def known_ahead(self, limit: int) -> list[Any]:
        """Raw events that were broadcast and that its filter has not been given, the next first; resolves nothing.

        Empty where it has ended or left.
        """
        if self.error is not None or not self.is_present:
            return []
        ledger = self.state.ledger
        at = self.pulled - ledger.base
        return ledger.events[at : at + limit]

    # What the filter does

    def reject_open_event(self) -> bool:
        """See `triggerer.abc.reject_shared_stream_event`; may be called from another thread."""
        if not self.is_open:
            return False
        if threading.get_ident() == self._loop_thread:
            self._reject()
        else:
            anyio.from_thread.run_sync(self._reject, token=self._token)
        return True

    def _reject(self) -> None:
        entry = self.open_entry
        if entry is not None and self.is_present:
            self.state.ledger.reject(self, entry)
            self.state.progress.note()

    async def stream(self) -> AsyncGenerator[Any, None]:
        """The raw events, from the first one after joining. Asking for the next resolves the one before."""
        state = self.state
        ledger, progress = state.ledger, state.progress
        is_acknowledged = state.is_acknowledged
        while self.may_read:
            seq = self.pulled
            wanted = self.wanted
            if wanted is not None:
                seq = wanted.popleft() if wanted else ledger.head
                if seq > self.done:
                    # What lies between does not concern it.
                    self.done = self.pulled = seq
                    if not progress.is_noted:
                        progress.note()
            if seq < ledger.head:
                at = seq - ledger.base
                if is_acknowledged:
                    self.open_entry = ledger.entries[at]
                self.ordinal = 0
                self.is_open = True
                self.pulled = seq + 1
                yield ledger.events[at]
                # Nobody looks before the next one is open, or it waits, or ends.
                self.done = seq + 1
                if not progress.is_noted:
                    progress.note()
            else:
                self.is_open = False
                self.open_entry = None
                if wanted is None:
                    state.readers[self] = None
                else:
                    ledger.mark_idle(self)
                    self.pulled = IDLE
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        self.is_open = False
        self.open_entry = None
        if self.error is not None:
            raise self.error
        # It left, and the ledger waits for it no more: its filter swallowed the cancellation.

    async def run(self) -> None:
        """Drive the filter until it ends, and hand what it yields to the sink.

        Raises:
            Exception: What the filter raised, or what `interrupt` was given.
        """
        current_subscriber.set(self)
        try:
            # In this order: what the scope does not take for its own is not ours either.
            with plugin_code(f"The filter of {self.name}"), self._scope:
                self._select(selector_of(self.trigger))
                stream = self.stream()
                async with aclosing(stream), aclosing(_filtered(self.trigger, stream)) as events:
                    await self._drive(events)
        except Exception as error:
            if self.error is None:
                raise
            if error is not self.error:
                raise self.error from error
            raise
        if self.error is not None:
            raise self.error

    def _select(self, selector: SharedStreamSelector | None) -> None:
        # One that was ended before it started takes part no more, and nobody would take it out again.
        if selector is not None and self.may_read:
            # What was broadcast since it joined was offered to nobody.
            self.wanted = deque(range(self.pulled, self.state.ledger.head))
            self.state.selection.add(self, selector)

    async def _drive(self, events: AsyncGenerator[TriggerEvent, None]) -> None:
        # One function, since it runs for every derived event.
        state, pending = self.state, self.pending
        submit = self._sink.submit_nowait
        async for event in events:
            if not isinstance(event, TriggerEvent):
                raise PluginError(
                    f"The filter of {self.name} yielded {type(event).__qualname__}, not a TriggerEvent"
                )
            if not self.may_read:
                # Its filter goes on although it was ended. The message fails, and comes again, or its watcher is gone.
                continue
            entry = self.open_entry
            # As a constructor would, whose call takes longer than the rest.
            derived = _new_derived(DerivedEvent)
            derived.subscriber = self
            derived.entry = entry
            derived.next = None
            if entry is not None:
                entry.unresolved += 1
                if self.oldest_pending is None:
                    self.oldest_pending = derived
                else:
                    assert self._newest is not None
                    self._newest.next = derived
                self._newest = derived
            pending.count += 1
            try:
                key = None
                if entry is not None:
                    # Now: later the message may be gone.
                    assert state.producer is not None
                    key = state.producer.get_idempotency_key(entry.payload)
                submit(derived, event, self.source, key, self.ordinal)
            except BaseException:
                # The producer's `get_idempotency_key` raised, say: the event counts as refused.
                derived.complete(PluginError(f"An event of {self.name} could not be submitted"))
                raise
            self.ordinal += 1
            if pending.count >= pending.limit:
                await pending.wait_for_room()


def _filtered(
    trigger: BaseEventTrigger, stream: AsyncGenerator[Any, None]
) -> AsyncGenerator[TriggerEvent, None]:
    events = trigger.filter_shared_stream(stream)
    if not isinstance(events, AsyncGenerator):
        raise PluginError(
            f"{type(trigger).__qualname__}.filter_shared_stream() returned {type(events).__qualname__}",
            hint="write it as an async generator: `async def` with `yield`",
        )
    return events
