"""A producer in memory, with a stored state, passes the conformance suite. Its subclasses have faults, which the suite
finds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from triggerer.abc import AdvanceItem, SharedStreamProducer, StreamState
from triggerer.errors import StoreError
from triggerer.testing import Feature, ProducerConformance


class Shelf(SharedStreamProducer):
    """Yields the items of a shelf that its state does not name, and yields failed items again."""

    def __init__(self, shelf: list[str]) -> None:
        self._shelf = shelf
        self._again: list[int] = []
        self._done: set[int] = set()

    def use_state(self, state: StreamState) -> None:
        self._state = state
        self._done = set(state.value or [])

    async def open_stream(self) -> AsyncIterator[tuple[str, int]]:
        seen = set(self._done)
        while True:
            await checkpoint()
            due = [*self._again, *(n for n in range(len(self._shelf)) if n not in seen)]
            self._again.clear()
            for number in due:
                seen.add(number)
                yield self._shelf[number], number
            if not due:
                await anyio.sleep(0.001)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for number, outcome in batch:
            if outcome.failed or not (outcome.acked or outcome.rejected):
                self._again.append(number)
            else:
                self._done.add(number)
        await self.save()

    async def save(self) -> None:
        await self._state.save(sorted(self._done))

    def get_idempotency_key(self, broker_payload: int) -> str:
        return f"shelf/{broker_payload}"


class SavesOnDelivery(Shelf):
    async def open_stream(self) -> AsyncIterator[tuple[str, int]]:
        async for event, number in super().open_stream():
            await self._state.save(sorted({*self._done, number}))
            yield event, number


class SavesFailedMessages(Shelf):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        self._done.update(number for number, _ in batch)
        await self.save()


class IgnoresARefusedSave(Shelf):
    async def save(self) -> None:
        with suppress(StoreError):
            await super().save()


class NumbersByDelivery(Shelf):
    def __init__(self, shelf: list[str]) -> None:
        super().__init__(shelf)
        self._keys: dict[int, str] = {}

    def get_idempotency_key(self, broker_payload: int) -> str:
        return self._keys.setdefault(broker_payload, f"{id(self)}/{len(self._keys)}")


class TestShelf(ProducerConformance):
    features = frozenset({Feature.REDELIVERY, Feature.IDEMPOTENCY, Feature.STATE})
    kind: type[Shelf] = Shelf
    patience_s = 10.0

    async def setup(self) -> None:
        self.shelf: list[str] = []

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        self.shelf.extend(values)

    async def new_producer(self) -> SharedStreamProducer:
        return self.kind(self.shelf)

    async def committed(self, lane: int = 0) -> int:
        return len(self.state.value or [])


FAULTS: dict[type[Shelf], str] = {
    SavesOnDelivery: "test_no_state_passes_a_failed_or_open_message",
    SavesFailedMessages: "test_no_state_passes_a_failed_or_open_message",
    IgnoresARefusedSave: "test_a_state_that_is_not_saved_passes_nothing",
    NumbersByDelivery: "test_a_state_that_is_not_saved_passes_nothing",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_by_its_case(fault: type[Shelf]) -> None:
    suite: Any = TestShelf()
    suite.kind, suite.patience_s = fault, 0.3
    with pytest.raises(AssertionError):
        getattr(suite, FAULTS[fault])()
