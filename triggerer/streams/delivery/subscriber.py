"""One trigger's place on a shared stream: what its filter reads, what it derives, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable
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
from triggerer.streams.delivery.derived_event import DerivedEvent, Deriver
from triggerer.streams.delivery.filtering import filtered
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lanes import Entry, Lane, Rejection
from triggerer.streams.delivery.ledger import IDLE
from triggerer.streams.delivery.pending_limit import PendingLimit
from triggerer.streams.delivery.selection import selector_of


class Subscriber(Deriver):
    """A member of a group, with the stream that its filter reads.

    `run` drives the filter, and returns or raises when the filter ends; its caller decides what that means
    (`Subscribers.fail`, `Subscribers.leave`). `interrupt` ends it from outside.
    """

    __slots__ = (
        "_loop",
        "_loop_thread",
        "_missed_to",
        "_newest",
        "_scope",
        "_sink",
        "_token",
        "_waiter",
        "error",
        "is_open",
        "joined_at",
        "may_read",
        "name",
        "open_entry",
        "open_source",
        "pulled",
        "sent_ahead",
        "trigger",
        "wanted",
        "was_absent",
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
        """What ended it; set before its filter learns of it."""
        self.may_read = True
        """False once it has been ended, or has left."""
        self.pulled = 0
        """The number of the first event that the filter has not been given; `IDLE` while it is idle."""
        self.sent_ahead = 0
        """The number of the first event that was not shown to its filter before it is pulled, see `known_ahead`."""
        self.joined_at = 0
        """The number of the first event that it answers for."""
        self.was_absent = False
        """Whether its watchers may have failed something before, of which nobody has decided yet."""
        self._missed_to = 0
        """The number after the last message that it was not given, since something before that was not decided."""
        self.wanted: deque[int] | None = None
        """The numbers of the events that concern its filter and that it has not been given; None: all events do."""
        self.is_open = False
        """Whether the filter has pulled an event and not yet asked for the next."""
        self.open_entry: Entry | None = None
        self.open_source: EventSource | None = None
        """Where the events of the open message go, if not to all of its watchers: some are behind."""
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._scope = anyio.CancelScope()
        self.oldest_pending = None
        self._newest: DerivedEvent | None = None
        self._loop_thread = threading.get_ident()
        self._token = current_token()

    # What the group asks and tells

    def start_at(self, seq: int) -> None:
        self.pulled = self.joined_at = seq

    def wake(self) -> None:
        """Something can be read, or it has been ended. Does nothing unless its filter awaits the stream."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def interrupt(self, error: BaseException) -> bool:
        """End it with `error`, raised from the stream if the filter awaits that; elsewhere the filter is cancelled.

        Returns:
            Whether the error is raised from the stream. The filter may go on all the same; see `cancel`.
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

    def waits_for(self, key: Hashable) -> bool:
        """Whether it reads nothing of this lane until what is outstanding from before it came back is decided."""
        lane = self.state.lanes.get(key)
        return self.was_absent and lane is not None and self._reads_nothing_of(lane)

    def offer(self, seq: int) -> None:
        """Its selector names the event of this number, which has just been broadcast."""
        assert self.wanted is not None
        self.wanted.append(seq)
        if self.done == IDLE:
            self.pulled = seq
            self.state.ledger.mark_active(self, seq)
            self.wake()

    def known_ahead(self, limit: int) -> list[Any]:
        """The next raw events that its filter has not been given, in order; resolves nothing. Empty once it ended."""
        if self.error is not None or not self.is_present:
            return []
        ledger = self.state.ledger
        at = self.pulled - ledger.base
        events = ledger.events[at : at + limit]
        if self._has_lanes_to_pass:
            # Those that it passes are not given to it; what follows them is not known to be next.
            for place, entry in enumerate(ledger.entries[at : at + limit]):
                if self._is_passed(entry):
                    events = events[:place]
                    break
        self.sent_ahead = max(self.sent_ahead, self.pulled + len(events))
        return events

    # What the filter does

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
            watchers = (self.open_source or self.source).watchers
            ledger.reject(self, entry, Rejection(event, watchers, reason))
            self.state.progress.signal()

    async def stream(self) -> AsyncGenerator[Any, None]:
        """The raw events, from the first one after joining. Asking for the next resolves the one before."""
        state = self.state
        ledger, progress, backlogs = state.ledger, state.progress, state.backlogs.by_lane
        events, entries, wanted = ledger.events, ledger.entries, self.wanted
        is_acknowledged = state.is_acknowledged
        may_be_behind = False
        while self.may_read:
            seq = self.pulled
            if wanted is not None:
                seq = wanted.popleft() if wanted else ledger.head
                if seq > self.done:
                    # The events in between do not concern it.
                    self.done = self.pulled = seq
                    if not progress.is_signalled:
                        progress.signal()
            if seq < ledger.head:
                at = seq - ledger.base
                if is_acknowledged:
                    entry = entries[at]
                    if backlogs or self.was_absent:
                        may_be_behind = True
                        if not self._may_open(entry):
                            self.done = self.pulled = seq + 1
                            if not progress.is_signalled:
                                progress.signal()
                            continue
                    elif may_be_behind:
                        # Nobody is behind any more.
                        may_be_behind = False
                        self._open_to_all()
                    self.open_entry = entry
                self.is_open = True
                self.pulled = seq + 1
                yield events[at]
                # Nobody sees this before the next one is open, or the filter waits or ends: nothing is awaited here.
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
        # It has left, so the ledger does not wait for it; its filter swallowed the cancellation.

    def _open_to_all(self) -> None:
        """Give the events of the open message to all of its watchers."""
        self.open_source = None

    def _may_open(self, entry: Entry) -> bool:
        """Whether it is given this message; False if all of its watchers are, or may be, behind in the lane.

        It reads no lane that holds something from before it came back: whether its watchers are behind there is decided
        only when that is at the lane's head. Nor one in which a message has failed that comes again.
        """
        state, lane = self.state, entry.lane
        assert lane is not None
        assert state.producer is not None
        if self.was_absent and (
            self._is_undecided(lane)
            or (self._has_missed_head(lane) and not self._is_behind_at(entry, lane))
        ):
            self._miss(entry)
            return False
        self.open_source = None
        if lane.key in state.backlogs.by_lane:
            position = state.position_of(entry)
            source = state.backlogs.live_source(self.source, lane.key, position)
            if source is None and entry.seq < self.sent_ahead:
                # It was sent to where the filter runs before its watchers were set back.
                self.open_source = EventSource((), self.source.fence)
                return True
            if (
                source is not self.source
                and state.reads_log
                and not state.backlogs.are_stored(self.source, lane.key)
            ):
                # The group before ended while that was being written: this one waits for it too.
                self._miss(entry)
                return False
            self.open_source = source if source is not self.source else None
            return source is not None
        return True

    def _miss(self, entry: Entry) -> None:
        """Fail a message that it is not given: whether its watchers are behind is decided at the lane's head."""
        state, seq = self.state, entry.seq
        state.absences.begin(self.source.watchers, seq)
        state.absences.end(self.source.watchers, seq + 1)
        state.ledger.miss(self, entry)
        self._missed_to = seq + 1

    def _reads_nothing_of(self, lane: Lane) -> bool:
        return self._is_undecided(lane) or self._has_missed_head(lane)

    def _is_undecided(self, lane: Lane) -> bool:
        head = lane.head
        return head is not None and (
            head.seq < self.joined_at or self.state.is_redelivered(head, lane.key)
        )

    def _has_missed_head(self, lane: Lane) -> bool:
        """Whether the lane's head is a message that it was not given: its watchers are about to fall behind there."""
        head = lane.head
        if head is None or head.seq >= self._missed_to:
            return False
        return head.nacks is not None and head.nacks.has_refused(self)

    def _is_behind_at(self, entry: Entry, lane: Lane) -> bool:
        """Whether all of its watchers have fallen behind in the lane, and have not caught up to this message."""
        state = self.state
        if lane.key not in state.backlogs.by_lane:
            return False
        return state.backlogs.live_source(self.source, lane.key, state.position_of(entry)) is None

    @property
    def _has_lanes_to_pass(self) -> bool:
        return self.was_absent or bool(self.state.backlogs.by_lane)

    def _is_passed(self, entry: Entry) -> bool:
        """Whether it would not be given this message, as far as is known now."""
        state, lane = self.state, entry.lane
        assert lane is not None
        if self.was_absent and self._reads_nothing_of(lane):
            return True
        if lane.key not in state.backlogs.by_lane or entry.seq < self.sent_ahead:
            return False
        position = state.position_of(entry)
        return state.backlogs.live_source(self.source, lane.key, position) is None

    async def run(self) -> None:
        """Drive the filter until it ends, and hand what it yields to the sink.

        Raises:
            Exception: What the filter raised, or what `interrupt` was given.
        """
        current_subscriber.set(self)
        try:
            # In this order: a cancellation that passes the scope is not ours.
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
        # One that was ended before it started must not be added: nobody would remove it.
        if selector is not None and self.may_read:
            # What was broadcast since it joined has been offered to nobody.
            self.wanted = deque(range(self.pulled, self.state.ledger.head))
            self.state.selection.add(self, selector)

    async def _drive(self, events: AsyncGenerator[TriggerEvent, None]) -> None:
        # One function, since it runs for every derived event.
        state, pending = self.state, self.pending
        sink: EventSink = self._sink
        submit = sink.submit_nowait
        get_key: Callable[[Any], str | None] | None = None
        is_first = True
        # How many events were derived from the open one before, which `pulled` tells from others.
        open_at = ordinal = -1
        async for event in events:
            if is_first:
                # The stream is open by now, and it is known whether its producer keeps a state.
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
                # The filter goes on although it was ended. Its message is redelivered, or its watcher is gone.
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
                    # Asked now: later the message may be gone.
                    key = get_key(entry.payload)
                submit(derived, event, self.open_source or self.source, key, ordinal)
            except BaseException:
                # `get_idempotency_key` may have raised: the event counts as refused.
                derived.complete(PluginError(f"An event of {self.name} could not be submitted"))
                raise
            ordinal += 1
            # First this: while the service stops, `pending` makes no more room.
            if sink.is_full:
                await sink.wait_for_room()
            if pending.count >= pending.limit:
                await pending.wait_for_room()
