"""Bugs in how the broker is advanced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any, cast

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.abc import AdvanceItem, AdvanceOutcome, SharedStreamProducer
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.delivery import pump
from triggerer.streams.delivery.deadlines import _Advances
from triggerer.streams.delivery.group import Group
from triggerer.streams.delivery.lane import Lane
from triggerer.streams.delivery.pump import Pump
from triggerer.streams.supervision.stream import SharedStream
from triggerer.testing.simulation.brokers.producer import SimulatedProducer
from triggerer.testing.simulation.kernel.delivery import Delivery


@mutation(rules="L1", seed=631)
def a_cancellation_ends_the_pump_in_silence() -> Replacements:
    """A library cancels itself inside advance(), and the task group treats the pump as stopped."""
    yield pump, plugin_code, nullcontext


@mutation(rules="S3", seed=8, quick=True)
def a_reported_lane_is_finished_twice() -> Replacements:
    """`advance_lanes` reports a lane as advanced, and returns later. The lane is finished both times."""

    def unreported(together: Sequence[Lane], reported: set[int]) -> Sequence[Lane]:
        return together

    yield pump._unreported, unreported


class _Forgiving:
    """A producer whose advance() never raises."""

    def __init__(self, producer: SharedStreamProducer) -> None:
        self._producer = producer

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        with suppress(Exception):
            await self._producer.advance(batch)


@mutation(rules="L1|S1|S9", seed=79, quick=True)
def advance_again_after_an_advance_raised() -> Replacements:
    """An advance raises, the group goes on, and the broker is advanced past the failed batch."""
    one_by_one, beside_others = Pump._advance_one_by_one, Pump._advance_beside_others

    async def advance_one_by_one(self: Pump, producer: SharedStreamProducer) -> None:
        await one_by_one(self, cast("SharedStreamProducer", _Forgiving(producer)))

    async def advance_beside_others(
        self: Pump, producer: SharedStreamProducer, *others: Any
    ) -> None:
        await beside_others(self, cast("SharedStreamProducer", _Forgiving(producer)), *others)

    yield one_by_one, advance_one_by_one
    yield beside_others, advance_beside_others


@mutation(rules="S1", seed=198)
def advance_with_nobody_subscribed() -> Replacements:
    """After the last watcher has left, the poll continues, and events without subscribers count as clean."""

    def is_clean(self: AdvanceOutcome) -> bool:
        return not self.failed and not self.rejected

    async def drain_emptied(self: SharedStream, group: Group) -> None:
        while not self.members and group.outstanding:
            await group.state.progress.wait_for_room()

    yield AdvanceOutcome.is_clean, is_clean
    yield SharedStream._drain_emptied, drain_emptied


@mutation(rules="L1", seed=359)
def an_advance_that_hangs_is_waited_for() -> Replacements:
    """An advance never returns: its lane stands still for ever, and nothing shows it."""

    def mark_awaited(self: _Advances, now: float) -> float:
        return now

    yield _Advances.mark_awaited, mark_awaited


@mutation(rules="S1", seed=9, quick=True)
def commit_past_a_failed_position() -> Replacements:
    """An offset fails in one batch, and a later batch commits past that offset.

    The bug is in the simulation's producer, because producers are responsible for the broker's position.
    """

    def position(self: Any, delivery: Delivery) -> int:
        done = self._done.get((delivery.message.lane, delivery.generation), set())
        before: int = self._broker.lanes[delivery.message.lane].position
        return max(done, default=before - 1) + 1

    yield SimulatedProducer._position, position
