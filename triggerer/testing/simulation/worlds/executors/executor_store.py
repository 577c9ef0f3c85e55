"""A model of the executors' database, with runs, registrations, and requests that are slow or lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from triggerer.errors import OutcomeUnknown, StoreUnavailable
from triggerer.store.runs.orphans import MAX_ATTEMPTS

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.loop import VirtualLoop
    from triggerer.testing.simulation.worlds.executors.execution import Timeline

T = TypeVar("T")

_SLOW_SHARE = 0.2
_FAULT_SHARE = 0.03
"""The probability that a request fails, and also the probability that an answer is lost."""


@dataclass(slots=True)
class StoredRun:
    """The columns of a `dag_run` row that executors change."""

    pk: int
    state: str = "queued"
    executor: str | None = None
    attempt: int = 0
    has_begun: bool = False


class ExecutorStore:
    """The durable rows. Each method stands in for one transaction."""

    def __init__(self) -> None:
        self.runs: dict[int, StoredRun] = {}
        self.expiries: dict[str, float] = {}
        """By executor, the time at which its registration expires."""

    def add_run(self) -> None:
        pk = len(self.runs) + 1
        self.runs[pk] = StoredRun(pk)

    def claim_runs(self, executor: str, limit: int) -> dict[int, int]:
        """Claim queued runs, and return their attempts, by run."""
        picked = [run for run in self.runs.values() if run.state == "queued"][:limit]
        for run in picked:
            run.state, run.executor = "running", executor
            run.attempt += 1
            run.has_begun = run.attempt == 1
        return {run.pk: run.attempt for run in picked}

    def begin_run(self, executor: str, pk: int, attempt: int) -> bool:
        """Mark an attempt as begun, if it still belongs to this executor. Return whether it does."""
        run = self.runs[pk]
        is_ours = self._is_running_as(run, executor, attempt)
        run.has_begun |= is_ours
        return is_ours

    def end_run(self, executor: str, pk: int, attempt: int) -> None:
        run = self.runs[pk]
        if self._is_running_as(run, executor, attempt):
            run.state = "success"

    def running_at(self, executor: str) -> dict[int, int]:
        """Return the running attempts of this executor, by run."""
        running = [run for run in self.runs.values() if run.state == "running"]
        return {run.pk: run.attempt for run in running if run.executor == executor}

    def sweep(self, executor: str, known: Set[int], now: float) -> dict[int, int]:
        """Put the runs of dead executors, and this executor's runs that are not in `known`, back into the queue.

        A run without attempts left fails. Return the attempts of this executor's known runs, by run.
        """
        running = [run for run in self.runs.values() if run.state == "running"]
        for run in running:
            assert run.executor is not None
            if run.executor != executor and self.expiries.get(run.executor, now) <= now:
                never_began = run.attempt > 1 and not run.has_begun
                if run.attempt >= MAX_ATTEMPTS and not never_began:
                    run.state = "failed"
                else:
                    run.state = "queued"
                    run.attempt -= never_began
        ours = {run.pk: run.attempt for run in running if run.executor == executor}
        self.requeue_runs(executor, {pk: one for pk, one in ours.items() if pk not in known})
        return {pk: one for pk, one in ours.items() if pk in known}

    def requeue_runs(self, executor: str, attempts: Mapping[int, int]) -> None:
        for pk, attempt in attempts.items():
            run = self.runs[pk]
            if self._is_running_as(run, executor, attempt):
                run.state = "queued"
                run.attempt -= 1

    @staticmethod
    def _is_running_as(run: StoredRun, executor: str, attempt: int) -> bool:
        return (run.state, run.executor, run.attempt) == ("running", executor, attempt)


class Session:
    """A transaction on one executor's registration. Its commit changes the store."""

    def __init__(self, connection: ExecutorConnection) -> None:
        self.connection = connection
        self.changes: list[Callable[[], None]] = []


class ExecutorConnection:
    """Stands in for `Database` in one executor. A request that was sent arrives even if its executor stands still."""

    name = "the database"

    def __init__(self, timeline: Timeline, store: ExecutorStore, loop: VirtualLoop) -> None:
        self.timeline = timeline
        self.store = store
        self._loop = loop
        self.is_alive = True
        """Whether the executor's process is alive. Requests of a dead process do not arrive."""
        self.is_cut_off = False

    def restore(self) -> None:
        self.is_cut_off = False

    async def request(self, act: Callable[[], T]) -> T:
        """Let the database perform `act`.

        Raises:
            OutcomeUnknown: The database may have performed `act`.
            StoreUnavailable: The database has not performed `act`.
        """
        timeline, rng = self.timeline, self.timeline.random
        reply: asyncio.Future[T] = self._loop.create_future()

        def answer(deliver: Callable[[Any], None], value: object) -> None:
            def now() -> None:
                if reply.done():
                    return
                if self.is_cut_off:
                    reply.set_exception(OutcomeUnknown("the connection broke"))
                else:
                    deliver(value)

            timeline.call_later(self._delay(rng), lambda: self._loop.call_soon_threadsafe(now))

        def arrive() -> None:
            if not self.is_alive:
                return
            if self.is_cut_off:
                # The request is lost, and gets no answer. The caller has a timeout.
                return
            if timeline.occurs(_FAULT_SHARE):
                answer(reply.set_exception, StoreUnavailable("the database does not answer"))
                return
            result = act()
            if timeline.occurs(_FAULT_SHARE):
                answer(reply.set_exception, OutcomeUnknown("the connection broke"))
            else:
                answer(reply.set_result, result)

        timeline.call_later(self._delay(rng), arrive)
        return await reply

    def _delay(self, rng: Random) -> float:
        if self.timeline.occurs(_SLOW_SHARE):
            return rng.uniform(0.0, self.timeline.lease * 0.3)
        return rng.uniform(0.001, 0.02)

    @asynccontextmanager
    async def transaction(self, *, commit_timeout: timedelta) -> AsyncIterator[Session]:
        session = Session(self)
        yield session

        def commit() -> None:
            for change in session.changes:
                change()

        with anyio.move_on_after(commit_timeout.total_seconds(), shield=True):
            await self.request(commit)
            return
        raise OutcomeUnknown("the commit took too long")


class InstanceModel:
    """Stands in for `triggerer.store.streams.leases`."""

    async def register_instance(
        self, session: Session, instance_id: str, *, kind: str, expiry: timedelta
    ) -> None:
        assert kind == "executor"
        timeline = session.connection.timeline
        expiries = session.connection.store.expiries
        until = await session.connection.request(lambda: timeline.now + expiry.total_seconds())
        # In the database, a lock on the row orders two heartbeats. The model has no lock, so keep the later expiry.
        session.changes.append(
            lambda: expiries.update({instance_id: max(until, expiries.get(instance_id, 0.0))})
        )

    async def deregister_instance(self, session: Session, instance_id: str) -> None:
        expiries = session.connection.store.expiries

        def remove() -> None:
            expiries.pop(instance_id, None)

        session.changes.append(remove)
