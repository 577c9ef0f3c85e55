"""The producers' conformance suite: closing and cancelling."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from typing import Any

import anyio

from triggerer.abc import AdvanceItem, SharedStreamProducer
from triggerer.testing.conformance.driver import ACKED, CancelledAt, cancelled_at, close
from triggerer.testing.conformance.features import Feature, case
from triggerer.testing.conformance.resolutions import acked, nothing
from triggerer.testing.conformance.suite import ProducerSuite

# How often a case may try a cancellation again because the advance had finished before the cancellation arrived.
_LATE_AT_MOST = 5


class ClosingCases(ProducerSuite):
    """A producer that is closed or cancelled at any moment loses no message; part of `ProducerConformance`."""

    @case()
    async def test_a_producer_that_was_never_opened_can_be_closed(self) -> None:
        await self.publish(["a"])
        await close(await self._new_producer(), self.patience_s)
        await self._check_left(["a"], "from the next producer")

    @case()
    async def test_an_idle_producer_is_cancelled_and_closed(self) -> None:
        async with await self._driving() as driver:
            await driver.stay_quiet(self.quiet_s)
        await self.publish(["a"])
        await self._check_left(["a"], "from the next producer")

    @case()
    async def test_a_stream_that_is_cancelled_anywhere_loses_nothing(self) -> None:
        await self.publish(["a", "b", "c"])
        cancelled = 0
        came: list[str] = []
        for wait in self.cancel_at:
            if len(came) == 3:
                break  # all three messages came, so the last cancellation hit the wait for a fourth one
            came = []
            producer = await self._new_producer()
            try:
                cancelled += await self._pull_beside_run(producer, came, wait)
            finally:
                await close(producer, self.patience_s)
            assert await self.committed() == 0, f"cancelled at wait {wait}"
        assert cancelled, "open_stream() never awaits anything"
        await self._check_left(["a", "b", "c"], "after the last cancellation")

    async def _pull_beside_run(
        self, producer: SharedStreamProducer, came: list[str], wait: int
    ) -> bool:
        """Pull messages while `run` runs, as in the runtime. True if the pull was cancelled at its `wait`-th await."""
        async with anyio.create_task_group() as tasks:
            if type(producer).run is not SharedStreamProducer.run:
                tasks.start_soon(producer.run)
            ended = await cancelled_at(self._pull(producer, came), wait)
            tasks.cancel_scope.cancel()
        return ended is CancelledAt.CANCELLED

    async def _pull(self, producer: SharedStreamProducer, came: list[str]) -> None:
        """Pull without resolving messages, until three messages came and the source is quiet."""
        with anyio.move_on_after(self.patience_s) as scope:
            stream: Any = producer.open_stream()
            async with aclosing(stream):
                async for event, payload in stream:
                    if (value := self.value_of(event)) is not None:
                        came.append(value)
                    else:
                        await producer.advance([AdvanceItem(payload, ACKED)])
                    if len(came) == 3:
                        scope.deadline = anyio.current_time() + self.quiet_s

    @case()
    async def test_an_advance_that_is_cancelled_anywhere_leaves_things_whole(self) -> None:
        published: list[str] = []
        committed: set[str] = set()
        cancelled = late = 0
        waits = deque(self.cancel_at)
        while waits:
            wait = waits.popleft()
            more = [f"{wait}-{late}-a", f"{wait}-{late}-b"]
            await self.publish(more)
            published += more
            ways: set[CancelledAt] = set()
            async with await self._driving(nothing) as driver:
                await self._await_all(more, driver)
                came = driver.values
                # Earlier advances have committed the first messages. This producer gets all others, in order.
                if self._has(Feature.ORDERING):
                    assert came == published[len(published) - len(came) :]
                again = committed.intersection(came)
                assert not again, f"{again} came again after they had been committed"
                for values, payloads in driver.pending_by_lane():
                    batch = [AdvanceItem(payload, ACKED) for payload in payloads]
                    # If another lane's advance has covered this lane too, this advance awaits nothing, and so it is not
                    # cancelled.
                    way = await cancelled_at(driver.producer.advance(batch), wait)
                    ways.add(way)
                    if way is not CancelledAt.CANCELLED:
                        committed.update(values)
            was_cancelled = CancelledAt.CANCELLED in ways
            cancelled += was_cancelled
            if not was_cancelled:
                if CancelledAt.TOO_LATE not in ways or late == _LATE_AT_MOST:
                    break
                late += 1
                waits.appendleft(wait)
        assert cancelled, "advance() never awaits anything"
        await self.publish(["last"])
        async with await self._driving() as driver:
            await driver.until(lambda: "last" in acked(driver), "the last one is acked")
            assert not committed.intersection(driver.values)
            if not was_cancelled and self._has(Feature.ORDERING):
                assert driver.values == ["last"], "an advance that returned was not committed"
