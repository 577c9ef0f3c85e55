"""One trigger's place on a shared stream: what its filter reads, what it derives, and how it ends."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token

from triggerer.abc import BaseEventTrigger, TriggerEvent, current_subscriber
from triggerer.domain.events import EventSource
from triggerer.errors import PluginError
from triggerer.runtime.cancellation import plugin_code
from triggerer.runtime.lanes import Entry
from triggerer.runtime.ledger import Member

if TYPE_CHECKING:
    from triggerer.runtime.group import Group


class _Settled(Enum):
    SETTLED = auto()


_SETTLED = _Settled.SETTLED


class DerivedEvent:
    """A `TriggerEvent` on its way into the store, tied to the raw event that was open when the filter yielded it.

    Implements `triggerer.domain.events.UnsettledEvent`. Only (subscriber, entry, event, ordinal) are kept: there may be
    very many of these while the store lags.
    """

    __slots__ = ("_entry", "_event", "_subscriber", "ordinal")

    def __init__(
        self, subscriber: Subscriber, entry: Entry | None, event: TriggerEvent, ordinal: int
    ) -> None:
        self._subscriber = subscriber
        self._entry: Entry | _Settled | None = entry
        self._event = event
        self.ordinal = ordinal

    @property
    def event(self) -> TriggerEvent:
        return self._event

    @property
    def subscriber(self) -> Subscriber:
        return self._subscriber

    @property
    def is_settled(self) -> bool:
        return self._entry is _SETTLED

    @property
    def payload(self) -> Any:
        return self._event.payload

    @property
    def source(self) -> EventSource:
        return self._subscriber.source

    @property
    def idempotency_key(self) -> str | None:
        """The message's key; None where the stream has none, or the event derives from no message.

        To be asked for at submission: later the message may be gone.

        Raises:
            Exception: Whatever the producer's `get_idempotency_key` raises.
        """
        if not isinstance(self._entry, Entry):
            return None
        return self._subscriber.group.idempotency_key(self._entry.payload)

    @property
    def overdue_since(self) -> float:
        """When its message was broadcast; infinite where nothing waits for it."""
        return self._entry.broadcast_at if isinstance(self._entry, Entry) else math.inf

    def settle(self, error: Exception | None) -> None:
        """The store's answer, which comes once."""
        self._subscriber.group.backlog.remove()
        self.resolve(error)

    def resolve(self, error: Exception | None) -> None:
        """Confirm or refuse; a second call does nothing, so that the store's answer may come after a timeout."""
        entry = self._entry
        if entry is _SETTLED:
            return
        self._entry = _SETTLED
        self._subscriber.note_settled(self, entry if isinstance(entry, Entry) else None, error)


class Subscriber(Member):
    """A member of a group, together with the stream that its filter reads.

    `run` drives the filter and returns or raises when it ends; whoever runs it then decides what that means
    (`Group.fail`, `Group.leave`). It may be ended from outside by `interrupt`.
    """

    __slots__ = (
        "_is_awaiting",
        "_loop_thread",
        "_ordinal",
        "_position",
        "_scope",
        "_token",
        "_unsettled",
        "_wake",
        "error",
        "group",
        "is_open",
        "name",
        "on_settled",
        "open_entry",
        "source",
        "trigger",
    )

    def __init__(
        self,
        group: Group,
        trigger: BaseEventTrigger,
        *,
        name: str,
        source: EventSource,
        on_settled: Callable[[TriggerEvent, Exception | None], None] | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.trigger = trigger
        self.name = name
        self.source = source
        self.on_settled = on_settled
        self.error: BaseException | None = None
        """What ended it; set before its filter learns of it."""
        self.is_open = False
        """Whether the filter has pulled an event and has not pulled the next."""
        self.open_entry: Entry | None = None
        self._position = 0
        self._ordinal = 0
        self._is_awaiting = False
        self._wake = anyio.Event()
        self._scope = anyio.CancelScope()
        self._unsettled: deque[DerivedEvent] = deque()
        self._loop_thread = threading.get_ident()
        self._token = current_token()

    # What the group asks and tells

    @property
    def pulled(self) -> int:
        """The number of the first event that the filter has not been given."""
        return self._position + 1 if self.is_open else self._position

    def start_at(self, seq: int) -> None:
        self._position = seq

    def wake(self) -> None:
        """There is something to read; called once for each time that it waits (see `Group.wake_when_readable`)."""
        self._wake.set()

    def interrupt(self, error: BaseException) -> None:
        """End it with `error`: raised where the filter awaits the stream, by cancelling it where it is elsewhere."""
        if self.error is not None:
            return
        self.error = error
        if self._is_awaiting:
            self.wake()
            self.group.cancel_later(self._scope)
        else:
            self._scope.cancel()

    def oldest_unsettled(self) -> DerivedEvent | None:
        """The first of its events that the store has not answered for."""
        unsettled = self._unsettled
        while unsettled and unsettled[0].is_settled:
            unsettled.popleft()
        return unsettled[0] if unsettled else None

    def note_settled(
        self, derived: DerivedEvent, entry: Entry | None, error: Exception | None
    ) -> None:
        """Called by a derived event, once."""
        unsettled = self._unsettled
        if unsettled and unsettled[0] is derived:
            unsettled.popleft()
        self.group.note_settled(self, entry, error)
        if self.on_settled is not None:
            self.on_settled(derived.event, error)

    # What the filter does

    def reject_open_event(self) -> bool:
        """See `triggerer.abc.reject_shared_stream_event`; may be called from another thread."""
        if not self.is_open:
            return False
        if threading.get_ident() == self._loop_thread:
            self.group.reject(self)
        else:
            anyio.from_thread.run_sync(self.group.reject, self, token=self._token)
        return True

    async def stream(self) -> AsyncGenerator[Any, None]:
        """The raw events, from the first one after joining. Asking for the next resolves the one before."""
        group = self.group
        ledger = group.ledger
        is_acknowledged = ledger.lanes is not None
        while True:
            if self.error is not None:
                raise self.error
            if not self.is_present:
                # It left, and the ledger waits for it no more: its filter swallowed the cancellation.
                return
            if self._position < ledger.head:
                at = self._position - ledger.base
                if is_acknowledged:
                    self.open_entry = ledger.entries[at]
                self._ordinal = 0
                self.is_open = True
                yield ledger.events[at]
                self.is_open = False
                self.open_entry = None
                self._position += 1
                self.done = self._position
                if not group.is_progress_noted:
                    group.note_progress()
            else:
                self._wake = anyio.Event()
                self._is_awaiting = True
                group.wake_when_readable(self)
                try:
                    await self._wake.wait()
                finally:
                    self._is_awaiting = False

    async def run(self) -> None:
        """Drive the filter until it ends, and hand what it yields to the sink.

        Raises:
            Exception: What the filter raised, or what `interrupt` was given.
        """
        current_subscriber.set(self)
        backlog = self.group.backlog
        try:
            with self._scope, plugin_code(f"The filter of {self.name}"):
                stream = self.stream()
                async with aclosing(stream), aclosing(_filtered(self.trigger, stream)) as events:
                    async for event in events:
                        self._derive(event)
                        if backlog.is_full:
                            await backlog.wait_for_room()
        except Exception as error:
            if self.error is None:
                raise
            if error is not self.error:
                raise self.error from error
            raise
        if self.error is not None:
            raise self.error

    def _derive(self, event: TriggerEvent) -> None:
        if not isinstance(event, TriggerEvent):
            raise PluginError(
                f"The filter of {self.name} yielded {type(event).__qualname__}, not a TriggerEvent"
            )
        if self.error is not None or not self.is_present:
            # Its filter goes on although it was ended. The message is failed, and comes again, or its watcher is gone.
            return
        entry = self.open_entry
        derived = DerivedEvent(self, entry, event, self._ordinal)
        self._ordinal += 1
        if entry is not None:
            entry.unresolved += 1
            self._unsettled.append(derived)
        self.group.submit(derived)


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
