"""Bugs in leases: of streams, and of the runs of an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.domain.events import Fence
from triggerer.errors import TransientStoreError
from triggerer.executor.lease.registration import Registration
from triggerer.executor.sweep import SweepSchedule
from triggerer.hosting.host import TriggerHost
from triggerer.processes.own_lease import OwnLease
from triggerer.streams.supervision.manager import Manager
from triggerer.streams.supervision.stream import SharedStream


@mutation(rules="S6|L1", seed=32, quick=True)
def a_lease_is_compared_by_its_owner_alone() -> Replacements:
    """A host loses a stream and gets it again in a later epoch, and goes on as before."""
    right = TriggerHost._adopt

    def adopt(self: TriggerHost, fences: Iterable[Fence]) -> None:
        held = {fence.stream_digest: fence for fence in fences}
        self._owned.update((one, held[one]) for one in self._owned if one in held)
        right(self, held.values())

    yield right, adopt


@mutation(rules="S6|S3", seed=363)
def a_lost_lease_leaves_a_draining_stream() -> Replacements:
    """A host loses the lease of a draining stream, and the watchers of a later lease join the draining group."""

    def close_stream_known_as(self: Manager, stream_id: str) -> None:
        pass

    yield Manager.close_stream_known_as, close_stream_known_as


@mutation(rules="S6", seed=293)
def a_lost_lease_is_used_once_more() -> Replacements:
    """A task that is woken just before its cancellation still broadcasts or advances under the ended lease."""
    right = SharedStream.close

    def close(self: SharedStream) -> None:
        group, self.group = self.group, None
        right(self)
        self.group = group

    yield right, close


@mutation(rules="S6", seed=43, quick=True)
def an_owner_does_not_look_at_its_own_clock() -> Replacements:
    """An owner that cannot reach the database goes on as if its lease had no end."""
    right = OwnLease.__init__

    def init(self: OwnLease, duration: timedelta, **options: Any) -> None:
        right(self, duration, **options)
        self._usable_s = float("inf")

    yield right, init


@mutation(rules="S12", seed=363)
def an_executor_counts_its_lease_from_the_answer() -> Replacements:
    """An executor counts its lease from the answer, and the database counts it from the request."""
    right = Registration.renew

    async def renew(self: Registration) -> None:
        await right(self)
        answered_at = self._lease.now()
        self._lease.extend(answered_at)
        self._guarded_lease.extend(answered_at)
        if self._guard is not None:
            self._guard.extend(self._guarded_lease.ends_at)

    yield right, renew


@mutation(rules="S12", seed=0, quick=True)
def a_guard_has_no_deadline() -> Replacements:
    """An executor's guard does not know when the lease ends, so a suspended executor's workers are not killed."""
    right = Registration.__init__

    def init(self: Registration, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **options)
        self._guarded_lease = OwnLease.unlimited()

    yield right, init


@mutation(rules="L1", seed=654)
def a_sweep_asked_for_during_a_sweep_is_forgotten() -> Replacements:
    """An executor asks for a sweep while one is under way, and the request is forgotten."""

    @contextmanager
    def sweeping(self: SweepSchedule) -> Iterator[None]:
        try:
            yield
            self._due = self._now() + self._every_s
        except TransientStoreError:
            self.ask()
            raise

    yield SweepSchedule.sweeping, sweeping
