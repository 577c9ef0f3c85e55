"""The real runtime without a database, for plugin authors' tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sized
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, cast

import orjson

from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.domain.events import EventSource, Fence, HasPayload, PendingEvent, WatcherRef
from triggerer.domain.watchers.bookmarks import Bookmark, BookmarkChange
from triggerer.domain.watchers.lane_positions import PositionChange, ReplayEnd, ReplayRequest
from triggerer.domain.watchers.stream_states import StateChange
from triggerer.errors import StoreError
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.supervision.member import Member
from triggerer.testing.clock import VirtualClock
from triggerer.testing.memory_parked import InMemoryParked
from triggerer.testing.threads import ThreadWatch

_QUIET_TURNS = 20
_QUIET_TURNS_UNSEEN = 500
_MOST_TURNS = 1_000_000


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as a test sees it."""

    subscribers: int
    outstanding: int
    lanes: dict[Hashable, int]


class HostedView:
    """A trigger that the harness hosts."""

    def __init__(self) -> None:
        self.events: list[TriggerEvent] = []
        """The events that the store confirmed, in order."""
        self.unpersisted: list[TriggerEvent] = []
        """The events that the trigger yielded and the store has not confirmed."""
        self._member: Member | None = None
        self._behind: Callable[[], dict[Hashable, list[Any]]] = dict
        self._set_aside: Callable[[], list[Any]] = list

    @property
    def behind(self) -> dict[Hashable, list[Any]]:
        """The trigger's backlog by lane (`catch_up=True`).

        In a log, the value of a lane is the position of the first missed message. In a queue, the value is the list of
        the stored raw events, in order.
        """
        return self._behind()

    @property
    def set_aside(self) -> list[Any]:
        """The raw events that were parked for the trigger (`catch_up=True`); empty after its stream has ended."""
        return self._set_aside()

    @property
    def error(self) -> BaseException | None:
        """The error that ended the trigger, its catch-up or its replay; None if no error has ended any of them."""
        if self._member is None:
            return None
        member = self._member
        others = (*member.catching_up.values(), *member.replay_errors.values())
        return member.error or next(filter(None, others), None)

    def mark_submitted(self, event: TriggerEvent) -> None:
        self.unpersisted.append(event)

    def mark_persisted(self, event: TriggerEvent) -> None:
        _remove_identical(self.unpersisted, event)
        self.events.append(event)

    def attach(
        self,
        member: Member,
        behind: Callable[[], dict[Hashable, list[Any]]],
        set_aside: Callable[[], list[Any]],
    ) -> None:
        self._member = member
        self._behind = behind
        self._set_aside = set_aside

    @property
    def member(self) -> Member:
        assert self._member is not None
        return self._member


def _remove_identical(events: list[TriggerEvent], event: TriggerEvent) -> None:
    for index, other in enumerate(events):
        if other is event:
            del events[index]
            return


class _Waiting(NamedTuple):
    view: HostedView
    event: TriggerEvent
    pending: PendingEvent

    def persist(self) -> None:
        # The event counts as persisted, even if the runtime no longer waits for it, for example after an ack timeout.
        self.view.mark_persisted(self.event)
        self.pending.complete(None)


class _Sink:
    """Confirms each event at once ("auto"), or waits until the test confirms or refuses it ("manual")."""

    def __init__(self, views: dict[int, HostedView], *, is_automatic: bool) -> None:
        self._views = views
        self._is_automatic = is_automatic
        self._waiting: deque[_Waiting] = deque()

    is_full = False

    async def wait_for_room(self) -> None:
        """Return at once: the sink has no bound."""

    def submit_nowait(
        self,
        event: PendingEvent,
        yielded: HasPayload,
        source: EventSource,
        key: str | None,
        ordinal: int,
    ) -> None:
        if not source.watchers:
            # No watcher receives this event, because the trigger was rewound while its filter had the raw event.
            event.complete(None)
            return
        view = self._views[source.watchers[0].watcher_id]
        submitted = cast(TriggerEvent, yielded)
        view.mark_submitted(submitted)
        waiting = _Waiting(view, submitted, event)
        if self._is_automatic:
            waiting.persist()
        else:
            self._waiting.append(waiting)

    def take(self, n: int | None) -> list[_Waiting]:
        """Remove and return the oldest `n` waiting events, or all, in order."""
        count = len(self._waiting) if n is None else min(n, len(self._waiting))
        return [self._waiting.popleft() for _ in range(count)]


class _Positions:
    """Stores no positions, because no watcher of the harness outlives the harness."""

    def submit_nowait(self, change: PositionChange) -> None:
        change.on_done(None)

    def end_replay_nowait(self, end: ReplayEnd) -> None:
        end.on_done(None)


class _States:
    """Stores the states of streams in memory, by key."""

    def __init__(self) -> None:
        self.values: dict[Hashable, Any] = {}

    async def load(self, fence: Fence, key: Hashable) -> Any:
        return self.values.get(key)

    def submit_nowait(self, change: StateChange) -> None:
        self.values[change.key] = orjson.loads(change.value)
        change.on_done(None)


class _Bookmarks:
    """Stores bookmarks in memory, by watcher, and adds their events to the triggers' `HostedView`s."""

    def __init__(self, views: dict[int, HostedView], *, is_automatic: bool) -> None:
        self._views = views
        self._is_automatic = is_automatic
        self._waiting: deque[BookmarkChange] = deque()
        self.values: dict[int, Any] = {}

    async def load(self, fence: Fence, watcher_id: int, classpath: str) -> Bookmark:
        return Bookmark(None, self.values.get(watcher_id))

    def submit_nowait(self, change: BookmarkChange) -> None:
        for event in change.events:
            self._views[change.watcher.watcher_id].mark_submitted(cast(TriggerEvent, event))
        self._waiting.append(change)
        if self._is_automatic:
            self.persist()

    def persist(self) -> None:
        while self._waiting:
            change = self._waiting.popleft()
            for event in change.events:
                self._views[change.watcher.watcher_id].mark_persisted(cast(TriggerEvent, event))
            self.values[change.watcher.watcher_id] = orjson.loads(change.value)
            change.on_done(None)

    def refuse(self) -> None:
        while self._waiting:
            self._waiting.popleft().on_done(StoreError("the test refused the bookmark"))


_FENCE = Fence("harness", "harness", 1)


class StreamHarness:
    """Hosts triggers on the caller's event loop, on a clock that the test moves.

    Only the runtime's timers use this clock: a plugin that sleeps waits in real time. The harness restarts neither
    groups nor triggers. A trigger that ended keeps its error, and the next `add` opens a new group.

    Args:
        ack_timeout: The setting `shared_stream_ack_timeout`, in seconds.
        subscriber_queue_size: The setting `shared_stream_subscriber_queue_size`.
        overflow_grace: The setting `shared_stream_overflow_grace`, in seconds.
        catch_up: Let a failing trigger fall behind alone if its upstream is a log or a queue (contract, rule 18). The
            trigger stays a member with a backlog until `restart` or `remove`. A queue's backlog is in memory.
        persistence: "auto": each event is confirmed at once. "manual": the test calls `persist` or `refuse`.
    """

    def __init__(
        self,
        ack_timeout: float = 300.0,
        subscriber_queue_size: int = 1024,
        overflow_grace: float = 0.0,
        catch_up: bool = False,
        persistence: Literal["auto", "manual"] = "auto",
    ) -> None:
        if persistence not in ("auto", "manual"):
            raise ValueError(f"persistence is 'auto' or 'manual', not {persistence!r}")
        self._views: dict[int, HostedView] = {}
        self._clock = VirtualClock()
        self._sink = _Sink(self._views, is_automatic=persistence == "auto")
        self._threads: ThreadWatch | None = None
        self._replays = 0
        self._states = _States()
        self._bookmarks = _Bookmarks(self._views, is_automatic=persistence == "auto")
        self._parked = InMemoryParked()
        settings = RuntimeSettings(
            ack_timeout=ack_timeout,
            subscriber_queue_size=subscriber_queue_size,
            overflow_grace=overflow_grace,
        )
        self._manager = Manager(
            RuntimeContext(
                self._sink,
                positions=_Positions() if catch_up else None,
                parked=self._parked if catch_up else None,
                states=self._states,
                bookmarks=self._bookmarks,
                clock=self._clock,
                settings=settings,
                restarts=False,
            )
        )

    async def __aenter__(self) -> Self:
        self._threads = ThreadWatch()
        await self._manager.__aenter__()
        self._threads.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._threads is not None:
            self._threads.stop()
        return await self._manager.__aexit__(kind, error, trace)

    async def add(self, trigger: BaseEventTrigger) -> HostedView:
        """Host the trigger's class with its serialised arguments.

        If the plugin raises an error, the view's `error` shows it.
        """
        number = len(self._views) + 1
        view = self._views[number] = HostedView()
        cls = type(trigger)
        failure: Exception | None = None
        kwargs: dict[str, Any] = {}
        try:
            with plugin_code(f"serialize() of {cls.__qualname__}"):
                kwargs = trigger.serialize()[1]
        except Exception as error:  # noqa: BLE001  (the plugin's error becomes the view's error)
            failure = error

        def make() -> BaseEventTrigger:
            if failure is not None:
                raise failure
            return cls(**kwargs)

        spec = TriggerSpec(
            name=f"{cls.__qualname__}#{number}",
            make=make,
            kwargs=kwargs,
            source=EventSource((WatcherRef(number, 0),), _FENCE),
        )
        (member,) = self._manager.add([spec])
        view.attach(
            member,
            lambda: self._behind(member, number),
            lambda: self._load(member, self._parked.set_aside(number)),
        )
        return view

    @property
    def states(self) -> dict[Hashable, Any]:
        """The states that producers stored, by stream key.

        Before `add`, a test may insert the state that an earlier producer stored.
        """
        return self._states.values

    @property
    def bookmarks(self) -> dict[int, Any]:
        """The stored bookmarks, by the trigger's number: 1 for the first `add`, 2 for the second.

        Before `add`, a test may insert the bookmark that an earlier trigger stored.
        """
        return self._bookmarks.values

    def _behind(self, member: Member, number: int) -> dict[Hashable, list[Any]]:
        stream = self._manager.streams.get(member.stream_key)
        backlogs = () if stream is None else stream.behind.backlogs.behind(number)
        return {
            backlog.lane: backlog.position
            if backlog.stored_lane is None
            else self._load(member, self._parked.stored(number, backlog.stored_as))
            for backlog in backlogs
        }

    def _load(self, member: Member, stored: list[bytes]) -> list[Any]:
        stream = self._manager.streams.get(member.stream_key)
        group = None if stream is None else stream.group
        producer = None if group is None else group.state.producer
        return [] if producer is None else [producer.load_event(data) for data in stored]

    async def restart(self, view: HostedView) -> None:
        """Restart a trigger that failed and has a backlog (`catch_up=True`).

        If the trigger's catch-up waits to retry a failed message, it retries the message at once.
        """
        self._manager.restart(view.member)

    async def replay(
        self, view: HostedView, start: datetime | None = None, *, reemit: bool = False
    ) -> None:
        """Let a trigger read its log again (`catch_up=True`), as `triggerer watchers replay` does.

        Args:
            start: Read messages that were published at this instant or later. None reads from the earliest message on.
            reemit: Create events again, under new keys, for messages that already have events. In the harness such
                events appear even if `reemit` is false, because the harness stores no keys.
        """
        self._replays += 1
        watcher_id = view.member.source.watchers[0].watcher_id
        request = ReplayRequest(self._replays, watcher_id, start, reemit)
        self._manager.rewind(view.member, [request])

    async def remove(self, view: HostedView) -> None:
        """Unsubscribe the trigger, as the service does if its watcher was deleted on purpose."""
        self._manager.remove(view.member, on_purpose=True)

    async def persist(self, n: int | None = None) -> None:
        """Confirm the oldest `n` unconfirmed events. Without `n`, confirm all events and then all bookmarks."""
        for waiting in self._sink.take(n):
            waiting.persist()
        if n is None:
            self._bookmarks.persist()

    async def refuse(self, n: int | None = None) -> None:
        """Act as a store that failed: never confirm the oldest `n` unconfirmed events.

        Without `n`, confirm no event that is unconfirmed now, and fail all unconfirmed bookmarks with a `StoreError`.
        """
        self._sink.take(n)
        if n is None:
            self._bookmarks.refuse()

    async def quiesce(self) -> None:
        """Wait until the runtime and the plugins are idle. Then nothing happens until the test acts or moves the clock.

        Waits for work in threads too, but not for sleeps in real time or for a broker.

        Raises:
            RuntimeError: The event loop never became idle.
        """
        assert self._threads is not None, "enter the harness first"
        await _loop_is_idle()
        while await self._threads.wait_for_answer():
            await _loop_is_idle()

    async def sleep(self, seconds: float) -> None:
        """Move the harness's clock, and run each timer when it is due, in order."""
        end = self._clock.monotonic() + seconds
        await self.quiesce()
        while (deadline := self._clock.next_deadline()) is not None and deadline <= end:
            self._clock.move_to(deadline)
            await self.quiesce()
        self._clock.move_to(end)
        await self.quiesce()

    @property
    def groups(self) -> dict[Hashable, GroupView]:
        """The running groups, by stream key."""
        views: dict[Hashable, GroupView] = {}
        for key, stream in self._manager.streams.items():
            group = stream.group
            if group is None:
                views[key] = GroupView(len(stream.members), 0, {})
            elif not group.is_ending:
                lanes = {
                    lane.key: lane.outstanding for lane in group.state.lanes if lane.outstanding
                }
                views[key] = GroupView(len(group.subscribers), group.outstanding, lanes)
        return views


async def _loop_is_idle() -> None:
    """Return once the loop has had nothing to do for some turns.

    On asyncio's own loop, this function looks at the list of ready callbacks. Other loops have no such list, so there
    the function waits for many more turns.
    """
    ready: Sized | None = getattr(asyncio.get_running_loop(), "_ready", None)
    needed = _QUIET_TURNS_UNSEEN if ready is None else _QUIET_TURNS
    quiet = 0
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        quiet = 0 if ready else quiet + 1
        if quiet >= needed:
            return
    raise RuntimeError(f"the streams still move after {_MOST_TURNS} turns of the event loop")
