"""Bugs in flow control: bounds, pauses, and the search for slow watchers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from anyio.lowlevel import checkpoint

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.abc import SharedStreamProducer
from triggerer.streams.delivery import slow_subscribers
from triggerer.streams.delivery.flow import Flow
from triggerer.streams.delivery.lane import Lane
from triggerer.streams.delivery.slow_subscribers import TURNS_BEFORE_OVERFLOW


@mutation(rules="S9", seed=8, quick=True)
def a_forgotten_pause_is_not_told_again() -> Replacements:
    """A paused lane goes to another consumer and comes back, but the producer is not asked to pause it again."""
    right = Flow._pause_lane

    async def pause_lane(self: Flow, producer: SharedStreamProducer, lane: Lane) -> None:
        if lane not in self._paused:
            await right(self, producer, lane)

    yield right, pause_lane


@mutation(rules="S9", seed=11, quick=True)
def a_lane_is_paused_while_it_is_being_resumed() -> Replacements:
    """A lane is paused before the call that resumes it has returned."""

    async def pause_lane(self: Flow, producer: SharedStreamProducer, lane: Lane) -> None:
        if lane.key in self._lanes.full:
            self._paused.add(lane)
            await producer.pause_lane(lane.key)

    yield Flow._pause_lane, pause_lane


@mutation(rules="S9", seed=0, quick=True)
def a_paused_lane_goes_beyond_its_bound() -> Replacements:
    """The poll does not wait at the bound of a lane that is paused. It broadcasts messages that were fetched before
    the pause."""

    def awaits_restart(self: Flow, key: Hashable) -> bool:
        lane = self._lanes.full.get(key)
        return lane is not None and lane not in self._paused

    yield Flow._must_wait, awaits_restart


@mutation(rules="L1", seed=156)
def a_poll_misses_the_room_that_comes_before_it_waits() -> Replacements:
    """A poll that pauses lets other tasks run, and does not look whether they have made room."""
    right = Flow._wait_for_room

    async def wait_for_room(self: Flow) -> None:
        for _ in range(TURNS_BEFORE_OVERFLOW):
            await checkpoint()
        await right(self)

    yield right, wait_for_room


@mutation(rules="L1", seed=7, quick=True)
def a_relieved_lane_is_never_resumed() -> Replacements:
    """A lane has room again, and the task that would resume the lane is not woken."""

    def note_low_water(self: Flow, lane: Lane) -> None:
        self._progress.signal_room()
        if lane in self._paused:
            self._to_resume.append(lane)

    yield Flow._record_low_water, note_low_water


@mutation(rules="L6", seed=104)
def a_lane_filled_by_one_watcher_is_not_checked() -> Replacements:
    """When the runtime pauses a full lane, it does not check which watcher fills the lane."""

    async def handle_full_lane(self: Flow) -> None:
        lane, self._lanes.newly_full = self._lanes.newly_full, None
        self.check_at = 0
        producer = self._state.producer
        if lane is not None and producer is not None and producer.pauses_lanes:
            await self._pause_lane(producer, lane)

    yield Flow.handle_full_lane, handle_full_lane


@mutation(rules="L6", seed=50, quick=True)
def a_large_message_counts_as_one_event() -> Replacements:
    """The search for slow watchers counts messages, not bytes. So it misses a watcher that hangs at a large message."""
    right = slow_subscribers._find_filled

    def find_filled(newest_first: Any, tail: Any, half: int, half_bytes: int) -> Any:
        return right(newest_first, tail, half, 10**18)

    yield right, find_filled
