"""A subscriber: the stream that one member's filter reads in one group, and the events that the filter derives."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
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
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.delivery.admission import Admission
from triggerer.streams.delivery.derived_event import DerivedEvent, Deriver
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Entry, Rejection
from triggerer.streams.delivery.ledger import IDLE
from triggerer.streams.delivery.selection import selector_of
from triggerer.streams.filtering import filtered
from triggerer.streams.pending_limit import PendingLimit


class Subscriber(Deriver):
    """A member of a group, with the stream that its filter reads.

    `run` drives the filter, and returns or raises when the filter ends. The caller of `run` then calls
    `Subscribers.fail` or `Subscribers.leave`. `interrupt` ends the filter from outside.
    """

    __slots__ = (
        "_loop",
        "_loop_thread",
        "_newest",
        "_scope",
        "_sink",
        "_token",
        "_waiter",
        "admission",
        "error",
        "is_open",
        "may_read",
        "name",
        "open_entry",
        "pulled",
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
        self.error: BaseException | None = None
        """The error that ended the subscriber; set before the filter learns of the error."""
        self.may_read = True
        """False once the subscriber has been ended, or has left."""
        self.pulled = 0
        """The number of the first event that the filter has not received; `IDLE` while the subscriber is idle."""
        self.admission = Admission(self)
        self.wanted: deque[int] | None = None
        """The numbers of the events that the selector wants and that the filter has not received. None: no selector."""
        self.is_open = False
        """Whether the filter has pulled an event and not yet asked for the next."""
        self.open_entry: Entry | None = None
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._scope = anyio.CancelScope()
        self.oldest_pending = None
        self._newest: DerivedEvent | None = None
        self._loop_thread = threading.get_ident()
        self._token = current_token()

    # Called by the group

    def start_at(self, seq: int) -> None:
        self.pulled = seq

    def wake(self) -> None:
        """Wake the filter if it awaits the stream: something can be read, or the subscriber was ended."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def interrupt(self, error: BaseException) -> bool:
        """End the subscriber with `error`.

        If the filter awaits the stream, the stream raises the error there. Otherwise the filter is cancelled.

        Returns:
            True: the stream raises the error. If the filter catches the error and continues, call `cancel`. False: the
            filter was cancelled, or had been ended before this call.
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
        """Cancel the filter at its present await."""
        self._scope.cancel()

    def offer(self, seq: int) -> None:
        """Let the filter receive the newest event, because the subscriber's selector wants it."""
        assert self.wanted is not None
        self.wanted.append(seq)
        if self.done == IDLE:
            self.pulled = seq
            self.state.ledger.mark_active(self, seq)
            self.wake()

    def known_ahead(self, limit: int) -> list[Any]:
        """Return up to `limit` raw events that the filter will receive next, in order, without resolving them.

        The caller (`triggerer.isolation`) sends these events ahead to the filter's own thread or process. The list is
        empty once the subscriber has ended.
        """
        if self.error is not None or not self.is_present:
            return []
        ledger = self.state.ledger
        at = self.pulled - ledger.base
        events = ledger.events[at : at + limit]
        admission = self.admission
        if admission.may_skip:
            # Stop before the first event that the filter will skip. The decisions about later events are not known yet.
            for place, entry in enumerate(ledger.entries[at : at + limit]):
                if admission.will_skip(entry):
                    events = events[:place]
                    break
        admission.sent_ahead = max(admission.sent_ahead, self.pulled + len(events))
        return events

    # Called by the filter

    def reject_open_event(self, reason: str | None = None) -> bool:
        """See `triggerer.abc.reject_shared_stream_event`; may be called from another thread."""
        if not self.is_open:
            return False
        if threading.get_ident() == self._loop_thread:
            self._reject(reason)
        else:
            anyio.from_thread.run_sync(self._reject, reason, token=self._token)
        return True

    def _reject(self, reason: str | None) -> None:
        entry, ledger = self.open_entry, self.state.ledger
        if entry is not None and self.is_present and self.done <= entry.seq:
            event = ledger.events[entry.seq - ledger.base]
            watchers = (self.admission.open_source or self.source).watchers
            if not watchers:
                # The filter received the message only because it was sent ahead, see `Admission.admits`.
                return
            ledger.reject(self, entry, Rejection(event, watchers, reason))
            self.state.progress.signal()

    async def stream(self) -> AsyncGenerator[Any, None]:
        """Yield the raw events since joining. By asking for the next event, the filter passes the previous one."""
        state = self.state
        ledger, progress, backlogs = state.ledger, state.progress, state.backlogs.by_lane
        events, entries, wanted = ledger.events, ledger.entries, self.wanted
        admission = self.admission
        is_acknowledged = state.is_acknowledged
        may_be_behind = False
        while self.may_read:
            seq = self.pulled
            if wanted is not None:
                seq = wanted.popleft() if wanted else ledger.next_seq
                if seq > self.done:
                    # The selector wants none of the events from `done` to `seq`, so the subscriber passes them.
                    self.done = self.pulled = seq
                    if not progress.is_signalled:
                        progress.signal()
            if seq < ledger.next_seq:
                at = seq - ledger.base
                if is_acknowledged:
                    entry = entries[at]
                    if backlogs or admission.was_absent:
                        may_be_behind = True
                        if not admission.admits(entry):
                            self.done = self.pulled = seq + 1
                            if not progress.is_signalled:
                                progress.signal()
                            continue
                    elif may_be_behind:
                        # No watcher is behind any longer.
                        may_be_behind = False
                        admission.open_to_all()
                    self.open_entry = entry
                self.is_open = True
                self.pulled = seq + 1
                yield events[at]
                # There must be no `await` between this change of `done` and the next change of `open_entry`. Otherwise
                # another task could see the new `done` together with the old `open_entry`.
                self.done = seq + 1
                if not progress.is_signalled:
                    progress.signal()
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
        # There is no error, so the subscriber has left, and its filter swallowed the cancellation. End the filter's
        # input.

    async def run(self) -> None:
        """Drive the filter until it ends, and submit its events to the sink.

        Raises:
            Exception: The filter's error, or the argument of `interrupt`.
        """
        current_subscriber.set(self)
        try:
            # Enter `plugin_code` before `_scope`, which swallows our own cancellation. So a cancellation that reaches
            # `plugin_code` is not ours.
            with plugin_code(f"The filter of {self.name}"), self._scope:
                self._select(selector_of(self.trigger))
                stream = self.stream()
                async with aclosing(stream), aclosing(filtered(self.trigger, stream)) as events:
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
        for watcher in self.source.watchers:
            self.state.selectors[watcher.watcher_id] = selector
        # A subscriber that was ended before `run` must not be added to the selection, because nothing would remove it.
        if selector is not None and self.may_read:
            # The events since the subscriber joined were broadcast before the selector was known, so the filter gets
            # all of them.
            self.wanted = deque(range(self.pulled, self.state.ledger.next_seq))
            self.state.selection.add(self, selector)

    async def _drive(self, events: AsyncGenerator[TriggerEvent, None]) -> None:
        # This function is long, because a call of another function for each derived event would cost time.
        state, pending, admission = self.state, self.pending, self.admission
        sink: EventSink = self._sink
        submit = sink.submit_nowait
        get_key: Callable[[Any], str | None] | None = None
        is_first = True
        # `ordinal` counts the events that derive from the open message, and `pulled` tells which message is open.
        open_at = ordinal = -1
        async for event in events:
            if is_first:
                # The stream is open by now, so it is known whether the producer keeps a state.
                is_first = False
                if state.producer is not None:
                    get_key = state.producer.get_idempotency_key
                if state.staging is not None:
                    sink = state.staging
                    submit = sink.submit_nowait
            if not isinstance(event, TriggerEvent):
                raise PluginError(
                    f"The filter of {self.name} yielded {type(event).__qualname__}, not a TriggerEvent"
                )
            if not self.may_read:
                # The filter continues although its subscriber has ended. Drop the event. In ack mode the message is
                # redelivered, unless the watcher was deleted. The fast path promises at most once.
                continue
            entry = self.open_entry
            derived = DerivedEvent(self, entry)
            if self.pulled != open_at:
                open_at, ordinal = self.pulled, 0
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
                if entry is not None and get_key is not None:
                    key = get_key(entry.payload)
                submit(derived, event, admission.open_source or self.source, key, ordinal)
            except BaseException:
                # `get_idempotency_key` may have raised: the event counts as refused.
                derived.complete(PluginError(f"An event of {self.name} could not be submitted"))
                raise
            ordinal += 1
            # Check `pending` last, because the service may begin to stop during the wait for the sink. Then
            # `pending.limit` is zero. The filter waits here until it is cancelled, and reads no further message.
            if sink.is_full:
                await sink.wait_for_room()
            if pending.count >= pending.limit:
                await pending.wait_for_room()
