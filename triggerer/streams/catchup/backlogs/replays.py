"""Carries out replays of logs: a watcher reads a log again from an earlier position (contract, rule 18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

import anyio
import structlog
from anyio.lowlevel import checkpoint

from triggerer.abc import SharedStreamProducer
from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import (
    Position,
    ReplayEnd,
    ReplayRequest,
    encode_lane,
    is_before,
)
from triggerer.errors import (
    BrokerUnavailable,
    ConfigurationError,
    GroupEnded,
    LeaseLost,
    TriggererError,
)
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.backlogs.rewind import Rewind
from triggerer.streams.catchup.reading.lane_ends import find_positions, tells_positions
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import Member
from triggerer.synchronization import Notifier

_log = structlog.get_logger(__name__)


class _Impossible(ConfigurationError):
    """The stream can never carry out a replay, however often it is tried."""


class Replays:
    """Carries out the replays of one stream, across its groups, in order and one at a time.

    While a watcher has an open replay, it reads no backlog. If the stream's owner dies during a replay, the next owner
    carries out the request again.

    Args:
        members: The stream's current members.
        on_change: Called with a watcher when one of its replays has ended.
    """

    def __init__(
        self,
        backlogs: Backlogs,
        context: RuntimeContext,
        members: Collection[Member],
        on_change: Callable[[WatcherRef], None],
    ) -> None:
        self.is_running = False
        """True if `run` was started and has not returned."""
        self._backlogs = backlogs
        self._context = context
        self._members = members
        self._on_change = on_change
        self._seen: dict[int, int] = {}
        """By request id, the watcher of each request that was added, for as long as the watcher stays in the stream.

        The store may return a request again after it was carried out. A watcher that leaves the stream loses its
        positions. So if the watcher comes back, and the store still shows a request, the request is carried out again.
        """
        self._open: dict[int, ReplayRequest] = {}
        self._storing: ReplayRequest | None = None
        """The request whose positions, or whose end, is being stored. It may no longer be open."""
        self._stored = anyio.Event()
        self._stored.set()
        """Set while `_storing` is None."""
        self._ended = Notifier()
        """Wakes `wait_until_restored` when a request is no longer open."""
        self._restored_to: dict[datetime | None, Mapping[Hashable, Position]] = {}
        """By start time, the positions that the present group has looked up for requests of a restore."""
        self._backoff = context.restart_backoff()

    def __bool__(self) -> bool:
        return bool(self._open)

    def add_requests(self, member: Member, requests: Iterable[ReplayRequest]) -> None:
        """Add replay requests, which are carried out in this order.

        A request that was added before is ignored, unless the watcher has left the stream since.
        """
        for request in requests:
            if request.id not in self._seen:
                self._seen[request.id] = request.watcher_id
                # Store a copy, so that a request which is added again is another object: see `_is_open`.
                self._open[request.id] = replace(request)
                self._backlogs.rewinding.add(request.watcher_id)
                member.replay_errors.pop(request.watcher_id, None)

    def forget(self, watchers: Iterable[WatcherRef]) -> None:
        """Drop the requests of these watchers, which were deleted or have left the stream."""
        gone = {watcher.watcher_id for watcher in watchers}
        for request in [one for one in self._open.values() if one.watcher_id in gone]:
            self._release(request)
        for request_id in [one for one, watcher_id in self._seen.items() if watcher_id in gone]:
            del self._seen[request_id]

    async def wait_until_restored(self) -> None:
        """Wait until no request of a restored database is open."""
        while any(request.is_restore for request in self._open.values()):
            await self._ended.wait()

    async def run(self, state: GroupState) -> None:
        """Carry out the requests until none is open or the group ends. Errors of plugins are not raised."""
        self._restored_to.clear()
        try:
            # In ack mode, the group creates its producer a few loop ticks after the start. Wait for the producer.
            while state.is_acknowledged and state.producer is None and not state.is_ending:
                await checkpoint()
            while True:
                await self._stored.wait()
                if not self._open or state.is_ending:
                    return
                await self._try(state, next(iter(self._open.values())))
        finally:
            self.is_running = False

    async def _try(self, state: GroupState, request: ReplayRequest) -> None:
        try:
            await self._carry_out(state, request)
            self._backoff.reset()
        except Exception as error:
            if not self._is_open(request):
                # The watcher has left the stream meanwhile. The request belongs to its new stream.
                return
            if not _is_retryable(request, error):
                # The plugin failed, or the replay is impossible: show the error and end the request.
                self.refuse(request, error)
                return
            self._show(request, error)
            clock = self._context.clock
            await clock.sleep_until(clock.monotonic() + self._backoff.next_delay())

    async def _carry_out(self, state: GroupState, request: ReplayRequest) -> None:
        if not self._backlogs.is_enabled or not state.reads_log:
            if request.is_restore:
                self._end(request)
                return
            raise not_a_log()
        assert state.producer is not None
        if not request.reemit and not _gives_keys(type(state.producer)):
            raise _Impossible(
                "its messages have no idempotency keys, so events that exist would be made again",
                hint="ask for that with --again",
            )
        if not tells_positions(type(state.producer)):
            raise _Impossible(
                "it cannot be replayed: its producer does not tell where its lanes begin and end",
                hint="it has to implement find_positions()",
            )
        if request.is_restore:
            starts, ends = await self._look_up_once(state, state.producer, request.start)
        else:
            starts = await find_positions(state.producer, request.start)
            ends = await state.lane_ends.find(
                state.producer, state.clock, after=state.clock.monotonic()
            )
        if self._is_open(request) and state.may_act:
            self._rewind(state, request, starts, ends)

    async def _look_up_once(
        self, state: GroupState, producer: SharedStreamProducer, start: datetime | None
    ) -> tuple[Mapping[Hashable, Position], Mapping[Hashable, Position]]:
        """Return each lane's position at `start`, and each lane's end.

        All requests of one restore share a group's look-ups. An end from an earlier look-up is good enough: the stream
        pulls no message before the restore is done, and then broadcasts every later message.
        """
        if start not in self._restored_to:
            self._restored_to[start] = await find_positions(producer, start)
        ends = await state.lane_ends.find(producer, state.clock, after=-math.inf)
        return self._restored_to[start], ends

    def _rewind(
        self,
        state: GroupState,
        request: ReplayRequest,
        starts: Mapping[Hashable, Position],
        ends: Mapping[Hashable, Position],
    ) -> None:
        """Rewind the watcher in every lane that has messages from the replay's start on. Synchronous."""
        found = self._find(request)
        if found is None:
            # No member serves the watcher now. If a member serves it again, the host adds the request again.
            self._seen.pop(request.id, None)
            self._release(request)
            return
        watcher, fence = found
        lanes = [lane for lane, end in ends.items() if lane in starts]
        lanes = [lane for lane in lanes if is_before(starts[lane], ends[lane])]
        unstorable = [lane for lane in lanes if encode_lane(lane) is None]
        if unstorable:
            raise _Impossible(f"positions in the lane {unstorable[0]!r} cannot be stored")
        waits_for = len(lanes) + 1
        self._begin_storing(request)
        failure: Exception | None = None

        def on_answer(error: Exception | None) -> None:
            nonlocal waits_for, failure
            waits_for -= 1
            failure = failure or error
            if not waits_for:
                self._conclude(request, failure, fence)

        for lane in lanes:
            Rewind(
                state,
                watcher,
                fence,
                lane,
                request,
                starts[lane],
                ends[lane],
                on_answer,
                is_open=lambda: self._is_open(request),
            ).begin()
        _log.info(
            "a watcher is rewound",
            watcher=state.name_of(watcher),
            start=None if request.start is None else request.start.isoformat(),
            reemit=request.reemit,
            lanes=len(lanes),
        )
        on_answer(None)

    def _conclude(self, request: ReplayRequest, failure: Exception | None, fence: Fence) -> None:
        """Delete the request's row if all positions are durable. Otherwise the replay is tried again."""
        if not self._is_open(request):
            # The watcher has left the stream, and the positions ended with that. Its row stays for the new stream.
            return
        if isinstance(failure, GroupEnded):
            # The request stays open for the next group.
            self._end_storing(request)
        elif failure is not None:
            # The stream's next owner finds the request's row, and repeats the replay.
            self._show(request, failure)
            self._release(request)
        else:
            self._submit_end(request, fence)

    def refuse(self, request: ReplayRequest, error: Exception) -> None:
        """Show why the replay is impossible, and end the request."""
        self._show(request, error)
        self._end(request)

    def _end(self, request: ReplayRequest) -> None:
        """Delete the request's row, and forget the request."""
        found = self._find(request)
        if found is None or not self._backlogs.is_enabled:
            self._release(request)
        else:
            self._begin_storing(request)
            self._submit_end(request, found[1])

    def _submit_end(self, request: ReplayRequest, fence: Fence) -> None:
        def on_answer(_: Exception | None) -> None:
            # If the row could not be deleted, the next owner repeats the replay.
            self._release(request)

        self._backlogs.writes.submit_end(
            ReplayEnd(fence, request.watcher_id, request.id, on_answer)
        )

    def _is_open(self, request: ReplayRequest) -> bool:
        """Return whether the request must still be carried out. A watcher that comes back has another object."""
        return self._open.get(request.id) is request

    def _release(self, request: ReplayRequest) -> None:
        if self._is_open(request):
            del self._open[request.id]
        if not any(one.watcher_id == request.watcher_id for one in self._open.values()):
            self._backlogs.rewinding.discard(request.watcher_id)
        self._end_storing(request)
        self._ended.notify_all()
        found = self._find(request)
        if found is not None:
            self._on_change(found[0])

    def _begin_storing(self, request: ReplayRequest) -> None:
        self._storing, self._stored = request, anyio.Event()

    def _end_storing(self, request: ReplayRequest) -> None:
        """Let `run` continue, unless it waits for another request. Then this request was forgotten."""
        if self._storing is request:
            self._storing = None
            self._stored.set()

    def _find(self, request: ReplayRequest) -> tuple[WatcherRef, Fence] | None:
        for member in self._members:
            for watcher in member.source.watchers:
                if watcher.watcher_id == request.watcher_id and member.source.fence is not None:
                    return watcher, member.source.fence
        return None

    def _show(self, request: ReplayRequest, error: Exception) -> None:
        if isinstance(error, LeaseLost):
            return
        for member in self._members:
            if any(one.watcher_id == request.watcher_id for one in member.source.watchers):
                member.record_replay_failure(request.watcher_id, error)


def _is_retryable(request: ReplayRequest, error: Exception) -> bool:
    """Return whether to try the request again.

    After the database was restored, the stream pulls no message until its replay has succeeded. So this replay is tried
    again after every error, unless it can never succeed.
    """
    if request.is_restore:
        return not isinstance(error, _Impossible)
    return isinstance(error, BrokerUnavailable)


def not_a_log() -> TriggererError:
    """Return the error for a replay of a stream that is no log."""
    return _Impossible(
        "it cannot be replayed: its messages do not stay in a log that can be read again",
        hint="only watchers of a shared stream whose producer has read_lane(), such as Kafka's, can be rewound",
    )


def _gives_keys(producer: type[SharedStreamProducer]) -> bool:
    return producer.get_idempotency_key is not SharedStreamProducer.get_idempotency_key
