"""What the cases for producers have in common: the hooks that a broker's suite implements, and how a case is driven."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar
from unittest import SkipTest

import anyio

from triggerer.abc import SharedStreamProducer
from triggerer.streams.supervision.stream_state import has_state
from triggerer.testing.conformance.driver import ACKED, Driver, Resolve, driving
from triggerer.testing.conformance.features import Feature, checked_features
from triggerer.testing.conformance.resolutions import nothing
from triggerer.testing.memory_state import InMemoryState


class ProducerSuite:
    """The part of `ProducerConformance` without cases; what they are is said there."""

    features: ClassVar[Any] = frozenset()
    """Of `Feature`, or their names."""
    patience_s: ClassVar[float] = 10.0
    quiet_s: ClassVar[float] = 0.1
    max_deliveries: ClassVar[int] = 3
    """With dead_letter: the limit that producers of `new_producer` keep."""
    lock_s: ClassVar[float] = 0.2
    """With lock_renewal: how long a lock lasts unless it is renewed."""
    cancel_at: ClassVar[Iterable[int]] = range(1, 100)
    """At which waits the cases of cancellation cancel; they stop at the first that is not reached."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.features = checked_features(cls.__name__, cls.features)

    state: InMemoryState
    """What the producers of the case are handed, if they override `use_state`; hooks may read it."""

    # Hooks

    async def setup(self) -> None:
        """Before each case: an empty source with at least two lanes, if there are lanes."""

    async def teardown(self) -> None:
        """After each case, whatever became of it."""

    async def new_producer(self) -> SharedStreamProducer:
        """A new producer on the source of `setup`; the one before has been closed, save with lock_renewal."""
        raise NotImplementedError

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        """Send messages to a lane, in order. Without lanes it is always 0. Values are unique in a case."""
        raise NotImplementedError

    async def publish_unordered(self, values: Sequence[str]) -> None:
        """With queue, if there are such: send messages that have no order with any other."""
        raise SkipTest(f"{type(self).__name__} does not override publish_unordered")

    async def committed(self, lane: int = 0) -> int:
        """How many of the messages published to the lane no new producer is given."""
        raise NotImplementedError

    def value_of(self, event: Any) -> str | None:
        """The published value of a raw event; None for an event that is no message."""
        return str(event)

    async def dead_letters(self) -> list[str]:
        """With dead_letter: the values that are at the place for dead letters, in any order."""
        raise NotImplementedError

    async def recreate(self) -> None:
        """With recreation: delete the source, and create it again under its name, empty; no producer is open."""
        raise NotImplementedError

    async def seek(self, position: int, lane: int = 0) -> None:
        """With seek: set the committed position of a lane back; no producer is open."""
        raise NotImplementedError

    # Running

    async def run_case(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run one case between `setup` and `teardown`."""
        self.state = InMemoryState()
        try:
            await self.setup()
            await body()
        finally:
            await self.teardown()

    async def _driving(
        self, resolve: Resolve = lambda _: ACKED
    ) -> AbstractAsyncContextManager[Driver]:
        return self._drive(await self._new_producer(), resolve)

    async def _new_producer(self) -> SharedStreamProducer:
        """A new producer, which has its state."""
        producer = await self.new_producer()
        if has_state(type(producer)):
            producer.use_state(self.state)
        return producer

    def _skip_without_state(self, producer: SharedStreamProducer) -> None:
        if not has_state(type(producer)):
            raise SkipTest(f"{type(producer).__qualname__} has no state")

    def _drive(
        self, producer: SharedStreamProducer, resolve: Resolve
    ) -> AbstractAsyncContextManager[Driver]:
        return driving(
            producer, value_of=self.value_of, resolve=resolve, patience_s=self.patience_s
        )

    async def _await_committed(self, number: int, driver: Driver) -> None:
        """Wait until so many messages of lane 0 are committed, and see that no more are."""
        with anyio.move_on_after(self.patience_s):
            while await self.committed() < number:
                await driver.stay_quiet(0.01)
        assert await self.committed() == number, f"delivered: {driver.values}"

    async def _await_all(self, values: Sequence[str], driver: Driver) -> None:
        due = set(values)
        await driver.until(lambda: due <= set(driver.values), f"{sorted(due)} come")

    def _has(self, feature: Feature) -> bool:
        return feature in self.features

    def _check_same(self, delivered: Sequence[str], expected: Sequence[str], what: str) -> None:
        """In order where there is one; each once in any case."""
        if self._has(Feature.ORDERING):
            assert list(delivered) == list(expected), what
        else:
            assert sorted(delivered) == sorted(expected), what

    async def _check_left(self, expected: Sequence[str], what: str) -> None:
        """A new producer is given exactly `expected`; they stay uncommitted."""
        async with await self._driving(nothing) as driver:
            await driver.count(len(expected))
            await driver.stay_quiet(self.quiet_s)
            self._check_same(driver.values, expected, what)
