"""The turns of one watcher's lanes: which lane is read next, and when."""

from __future__ import annotations

import math
import weakref
from datetime import UTC, datetime

from tests.unit.streams.scene import Sink, context
from triggerer.domain.events import Fence, WatcherRef
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.reading.lane_turns import LaneTurns
from triggerer.testing.clock import VirtualClock


class Referable(Backlog):
    """A backlog to which weak references are possible."""

    __slots__ = ("__weakref__",)


def backlog_of(lane: str) -> Backlog:
    return Referable(
        WatcherRef(1, 1),
        lane,
        stored_as=f'"{lane}"',
        since=datetime(2026, 1, 1, tzinfo=UTC),
        fence=Fence("stream", "me", 1),
        position=[None, 0],
        cursor=[None, 0],
    )


def test_a_lane_that_was_held_and_resumed_is_forgotten_once_it_is_gone() -> None:
    turns = LaneTurns(context(Sink(), clock=VirtualClock()))
    # This lane is due earlier than every held lane, so it comes before them in the heap.
    turns.delay(backlog_of("waiting"), 60)
    held = backlog_of("held")
    turns.delay(held, math.inf)
    assert turns.next() is None
    turns.resume(held)
    assert turns.next() is held
    turns.delay(held, math.inf)
    turns.resume(held)
    held.is_gone = True
    assert turns.next() is None
    assert turns.due() == 60
    reference = weakref.ref(held)
    del held
    assert reference() is None


def test_a_held_lane_waits_for_ever() -> None:
    clock = VirtualClock()
    turns = LaneTurns(context(Sink(), clock=clock))
    held, delayed = backlog_of("held"), backlog_of("delayed")
    turns.delay(held, math.inf)
    assert turns.due() == math.inf
    assert turns
    turns.delay(delayed, 60)
    assert turns.due() == 60
    clock.move_to(100)
    assert turns.next() is delayed
    delayed.is_caught_up = True
    assert turns.next() is None
    assert turns.due() == math.inf
    turns.offer(held)
    assert turns.next() is None
    turns.restart()
    assert turns.next() is held
