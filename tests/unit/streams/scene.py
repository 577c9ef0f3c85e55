"""Watchers on a log in memory, and a store in memory. The tests let one of the watchers fall behind."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, ClassVar

import anyio
import orjson

from triggerer.abc import (
    AdvanceItem,
    BaseEventTrigger,
    SharedStreamProducer,
    SharedStreamSelector,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, PositionChange, ReplayEnd
from triggerer.domain.watchers.parked import (
    ParkedChange,
    ParkedState,
    Passed,
    Replayed,
    Returned,
    SetAside,
    Stored,
    StoredBacklog,
    StoredMessage,
)
from triggerer.errors import ParkedFull, RowRefused
from triggerer.streams import Manager, RuntimeContext, RuntimeSettings, TriggerSpec
from triggerer.synchronization import Notifier
from triggerer.testing import (
    HostedView,
    InMemoryBroker,
    InMemoryProducer,
    InMemoryQueueProducer,
)


class Scene:
    """A broker, and what the filters of its watchers do."""

    by_name: ClassVar[dict[str, Scene]] = {}

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.broker = InMemoryBroker()
        self.is_queue = False
        self.is_breaking = False
        self.fails: dict[str, Callable[[Any], bool]] = {}
        """By watcher, the messages at which its filter raises."""
        self.rejects: Callable[[Any], bool] = lambda event: False
        self.rejected_by: dict[str, Callable[[Any], bool]] = {}
        """By watcher, the messages that its filter rejects in addition to `rejects`."""
        self.has_dead_letters = False
        """Whether the broker dead-letters rejected messages."""
        self.cannot_dump: Callable[[Any], bool] = lambda event: False
        self.ignores: Callable[[Any], bool] = lambda event: False
        """The messages from which no filter derives an event."""
        self.returns: set[tuple[str, Any]] = set()
        """(watcher, message): after this message the watcher's filter returns."""
        self.gates: dict[tuple[str, Any], anyio.Event] = {}
        """By watcher and message, the event for which the filter waits with the message open."""
        self.opened: list[tuple[str, Any]] = []
        """(watcher, message) for each message that a filter received, in order."""
        self.advanced: list[tuple[Any, tuple[int, int, int]]] = []
        """The messages that the broker was advanced past, in order, with the counts acked, failed and rejected."""
        self.reported_parked: list[Any] = []
        """The messages that the broker learned were parked."""
        self.waiting: dict[Hashable, int] | None = None
        """How many messages wait at the broker, by lane."""
        Scene.by_name[self.name] = self

    def publish(self, *values: Any, lane: Hashable = 0) -> None:
        self.broker.publish(*values, lane=lane)

    def watcher(self, name: str) -> Watching:
        return Watching(scene=self.name, name=name)

    def specs(
        self,
        *names: str,
        positions: tuple[LanePosition, ...] = (),
        stored_backlogs: tuple[StoredBacklog, ...] = (),
    ) -> list[TriggerSpec]:
        """Return one trigger for each name. The first trigger has the watcher 1, the second the watcher 2, and so on.

        Args:
            positions: The positions of watchers that are behind in a log.
            stored_backlogs: The backlogs of watchers that are behind in a queue.
        """
        fence = Fence("stream", "me", 1)
        specs = []
        for number, name in enumerate(names, 1):
            watcher = self.watcher(name)
            kwargs = watcher.serialize()[1]
            source = EventSource((WatcherRef(number, 0),), fence)
            rows = tuple(row for row in positions if row.watcher_id == number)
            lanes = tuple(lane for lane in stored_backlogs if lane.watcher_id == number)
            make = partial(type(watcher), **kwargs)
            specs.append(TriggerSpec(name, make, kwargs, source, rows, lanes))
        return specs


class BreakingQueue(InMemoryQueueProducer):
    """A queue's producer whose advances and pauses raise while `scene.is_breaking`."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.broker)
        self.scene = scene

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        if self.scene.is_breaking:
            raise RuntimeError("the connection is gone")
        await super().advance(batch)
        self.scene.advanced += [
            (item.broker_payload.value, (one.acked, one.failed, one.rejected))
            for item in batch
            for one in (item.outcome,)
        ]
        self.scene.reported_parked += [
            item.broker_payload.value for item in batch if item.outcome.is_set_aside
        ]

    def dead_letters_rejected(self, broker_payload: Any) -> bool:
        return self.scene.has_dead_letters

    def get_waiting(self) -> dict[Hashable, int] | None:
        return self.scene.waiting

    def dump_event(self, event: Any) -> bytes:
        if self.scene.cannot_dump(event):
            raise RuntimeError(f"cannot write {event}")
        return super().dump_event(event)

    async def pause(self) -> None:
        if self.scene.is_breaking:
            raise RuntimeError("the connection is gone")
        await super().pause()


class Breaking(BreakingQueue, InMemoryProducer):
    """A log's producer whose advances and pauses raise while `scene.is_breaking`."""


class Watching(BaseEventTrigger):
    def __init__(self, scene: str, name: str) -> None:
        self.scene, self.name = scene, name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Watching", {"scene": self.scene, "name": self.name}

    def shared_stream_key(self) -> Hashable:
        return self.scene

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        scene = Scene.by_name[kwargs["scene"]]
        return BreakingQueue(scene) if scene.is_queue else Breaking(scene)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            scene = Scene.by_name[self.scene]
            scene.opened.append((self.name, event))
            if (gate := scene.gates.get((self.name, event))) is not None:
                await gate.wait()
            rejects = scene.rejected_by.get(self.name, scene.rejects)
            if rejects(event):
                reject_shared_stream_event(f"{self.name} cannot read {event}")
                continue
            if scene.ignores(event):
                continue
            fails = scene.fails.get(self.name)
            if fails is not None and fails(event):
                raise RuntimeError(f"cannot take {event}")
            yield TriggerEvent(event)
            if (self.name, event) in scene.returns:
                return


class Selecting(Watching):
    """Selects the messages that equal its name, or the part of its name before a dot."""

    def shared_stream_selector(self) -> SharedStreamSelector:
        return SharedStreamSelector("value", lambda event: event, frozenset({self._wanted}))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for event in super().filter_shared_stream(shared_stream):
            if event.payload == self._wanted:
                yield event

    @property
    def _wanted(self) -> str:
        return self.name.partition(".")[0]


class Sink:
    """Stores everything at once, unless `delayed_positions` or `delayed_messages` is a list, which collects changes."""

    is_full = False

    def __init__(self) -> None:
        self.events: dict[tuple[int, str | None, int], Any] = {}
        self.positions: dict[tuple[int, str], list[Any] | None] = {}
        self.changed = Notifier()
        self.delayed_positions: list[PositionChange] | None = None
        """Positions that are not durable yet; None: each is durable at once."""
        self.failures: dict[tuple[int, str], int] = {}
        self.messages: dict[int, tuple[int, SetAside, ParkedState]] = {}
        """(watcher, message, state of the message), by id: stored messages and parked ones."""
        self.is_full_of_parked = False
        self.delayed_messages: list[ParkedChange] | None = None
        """Parked messages that are not durable yet; None: each is durable at once."""
        self.stored_ever = 0
        """The number of messages that were ever stored for a backlog."""
        self._last_id = 0
        self.refuses: Callable[[int, Any], bool] = lambda watcher_id, payload: False
        """Whether the store refuses an event, by watcher and payload."""

    async def wait_for_room(self) -> None:
        raise AssertionError("it is never full")

    def submit_nowait(self, *given: Any) -> None:
        self.changed.notify_all()
        if isinstance(given[0], PositionChange):
            change = given[0]
            if self.delayed_positions is not None:
                self.delayed_positions.append(change)
                return
            self.positions[change.watcher_id, change.lane] = change.position
            self.failures[change.watcher_id, change.lane] = change.failures
            change.on_done(None)
            return
        if isinstance(given[0], ParkedChange):
            self._park(given[0])
            return
        event, yielded, source, key, ordinal = given
        if any(self.refuses(one.watcher_id, yielded.payload) for one in source.watchers):
            event.complete(RowRefused("too large"))
            return
        for watcher in source.watchers:
            self.events.setdefault((watcher.watcher_id, key, ordinal), yielded.payload)
        event.complete(None)

    def end_replay_nowait(self, end: ReplayEnd) -> None:
        end.on_done(None)

    def _park(self, change: ParkedChange) -> None:
        if self.delayed_messages is not None:
            self.delayed_messages.append(change)
            return
        what = change.what
        known = {(watcher, one.key): id_ for id_, (watcher, one, _) in self.messages.items()}
        if isinstance(what, SetAside | Stored):
            id_ = known.get((change.watcher_id, what.key))
            if isinstance(what, SetAside) and what.was_stored and id_ is None:
                change.on_done(None)
                return
            if self.is_full_of_parked and id_ is None:
                change.on_done(ParkedFull("full"))
                return
            if isinstance(what, SetAside):
                self.messages[self._id(id_)] = change.watcher_id, what, ParkedState.SET_ASIDE
            elif id_ is None:
                self.stored_ever += 1
                aside = SetAside(what.lane, what.key, what.data, 0, "", None, what.parked_at)
                self.messages[self._id(None)] = change.watcher_id, aside, ParkedState.KEPT
        elif isinstance(what, Returned):
            if what.id in self.messages:
                watcher, message, _ = self.messages[what.id]
                self.messages[what.id] = watcher, message, ParkedState.SET_ASIDE
        elif isinstance(what, Replayed):
            self.messages.pop(what.id, None)
        elif isinstance(what, Passed):
            for key in what.keys:
                id_ = known.get((change.watcher_id, key))
                if id_ is not None and self.messages[id_][2] is ParkedState.KEPT:
                    del self.messages[id_]
        elif (id_ := known.get((change.watcher_id, what.key))) is not None:
            watcher, message, state = self.messages[id_]
            self.messages[id_] = watcher, replace(message, failures=what.failures), state
        change.on_done(None)

    def _id(self, known: int | None) -> int:
        if known is None:
            self._last_id += 1
        return known or self._last_id

    async def read_stored(
        self, fence: Fence, watcher_id: int, after: int, limit: int, lane: str | None = None
    ) -> list[StoredMessage]:
        await anyio.lowlevel.checkpoint()
        return [
            StoredMessage(id_, one.lane, one.key, one.data, one.failures)
            for id_, (watcher, one, state) in sorted(self.messages.items())
            if watcher == watcher_id
            and id_ > after
            and state is ParkedState.KEPT
            and lane in (None, one.lane)
        ][:limit]

    def stored(self, watcher_id: int) -> list[Any]:
        """Return the stored messages of a watcher, in order."""
        return [
            orjson.loads(one.data)[1]
            for _, (watcher, one, state) in sorted(self.messages.items())
            if watcher == watcher_id and state is ParkedState.KEPT
        ]

    def stored_backlogs(self) -> tuple[StoredBacklog, ...]:
        """Return the stored backlogs, as the stream's owner reads them."""
        return tuple(
            {
                (watcher, one.lane): StoredBacklog(watcher, one.lane, one.parked_at)
                for watcher, one, state in self.messages.values()
                if state is ParkedState.KEPT
            }.values()
        )

    def rows(self) -> tuple[LanePosition, ...]:
        """Return the stored positions in a log, as the stream's owner reads them."""
        return tuple(
            LanePosition(
                watcher, lane, position, datetime.now(UTC), self.failures.get((watcher, lane), 0)
            )
            for (watcher, lane), position in self.positions.items()
            if position is not None
        )

    def release_parked(self) -> None:
        """Store the delayed messages, and later ones at once."""
        delayed, self.delayed_messages = self.delayed_messages or [], None
        for change in delayed:
            self._park(change)
        self.changed.notify_all()

    def replay_parked(self) -> None:
        """Move all parked messages to the backlogs, as `watchers parked replay --all` does."""
        for id_, (watcher, message, _) in self.messages.items():
            self.messages[id_] = watcher, message, ParkedState.KEPT

    def release(self) -> None:
        """Store the delayed changes, and later ones at once."""
        delayed, self.delayed_positions = self.delayed_positions or [], None
        for change in delayed:
            self.submit_nowait(change)

    def derived(self, watcher_id: int) -> list[Any]:
        return [payload for (watcher, *_), payload in self.events.items() if watcher == watcher_id]

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not condition():
                # The broker and the runtime announce no changes, so look again after 10 ms.
                with anyio.move_on_after(0.01):
                    await self.changed.wait()


MAX_DELIVERIES = 3


def payloads_of(view: HostedView) -> list[Any]:
    """Return the payloads of a watcher's events in a harness."""
    return [event.payload for event in view.events]


def always(_: Any) -> bool:
    return True


def context(
    sink: Sink,
    *,
    max_deliveries: int = MAX_DELIVERIES,
    settings: RuntimeSettings | None = None,
    **others: Any,
) -> RuntimeContext:
    """Return the context of a runtime that stores everything in the sink and retries at once."""
    return RuntimeContext(
        sink,
        sink,
        sink,
        settings=settings or RuntimeSettings(max_deliveries=max_deliveries),
        restart_first=0.01,
        restart_longest=0.01,
        random=Random(1),
        **others,
    )


@asynccontextmanager
async def hosting(
    scene: Scene,
    sink: Sink,
    *names: str,
    positions: tuple[LanePosition, ...] = (),
    stored_backlogs: tuple[StoredBacklog, ...] = (),
    **others: Any,
) -> AsyncIterator[tuple[Any, ...]]:
    """Host watchers of these names, by default "sick" and "well"; yields the manager and the members."""
    specs = scene.specs(
        *(names or ("sick", "well")), positions=positions, stored_backlogs=stored_backlogs
    )
    async with Manager(context(sink, **others)) as manager:
        yield manager, *manager.add(specs)
