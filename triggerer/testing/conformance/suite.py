"""The common part of the producers' cases: the hooks that a broker's suite implements, and the driver."""

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
    """The hooks of `ProducerConformance` and the helpers of its cases."""

    features: ClassVar[Any] = frozenset()
    """The features of the producer: values of `Feature`, or their names."""
    patience_s: ClassVar[float] = 10.0
    """How many seconds a case waits for something to happen before it fails."""
    quiet_s: ClassVar[float] = 0.1
    """How many seconds a case waits to see that nothing happens."""
    max_deliveries: ClassVar[int] = 3
    """For the feature `dead_letter`: after how many failed deliveries the source dead-letters a message."""
    lock_s: ClassVar[float] = 0.2
    """For the feature `lock_renewal`: how many seconds a lock lasts unless it is renewed."""
    cancel_at: ClassVar[Iterable[int]] = range(1, 100)
    """The numbers of the awaits at which a cancellation case cancels a call; 1 is the call's first await.

    A case tries the numbers in order, and ends at the first await that the call does not reach.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.features = checked_features(cls.__name__, cls.features)
        cls.cancel_at = tuple(cls.cancel_at)
        if not cls.cancel_at:
            raise TypeError(f"{cls.__name__}.cancel_at is empty: name at least one wait, such as 1")

    state: InMemoryState
    """The state that the case's producers receive if they override `use_state`. Hooks can read the state."""

    # Hooks

    async def setup(self) -> None:
        """Before each case: make an empty source, with at least two lanes if the suite declares `lanes`."""

    async def teardown(self) -> None:
        """After each case, whether it passed or failed: delete the source."""

    async def new_producer(self) -> SharedStreamProducer:
        """Make a producer for the source of `setup`. Only cases for `lock_renewal` open two producers at once."""
        raise NotImplementedError

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        """Send messages to a lane, in order. Without the feature `lanes`, `lane` is 0. Values are unique in a case."""
        raise NotImplementedError

    async def publish_unordered(self, values: Sequence[str]) -> None:
        """Send messages without order, each in its own lane.

        Only cases for the feature `queue` need this. Do not override it if the source orders all messages.
        """
        raise SkipTest(f"{type(self).__name__} does not override publish_unordered")

    async def committed(self, lane: int = 0) -> int:
        """The number of committed messages of the lane. A new producer does not receive them."""
        raise NotImplementedError

    def value_of(self, event: Any) -> str | None:
        """The published value of a raw event; None for an event that is not a message."""
        return str(event)

    async def dead_letters(self) -> list[str]:
        """For the feature `dead_letter`: the values of the dead letters, in any order."""
        raise NotImplementedError

    async def recreate(self) -> None:
        """For the feature `recreation`: delete the source, and create a new source with the same name.

        No producer is open when the suite calls this.
        """
        raise NotImplementedError

    async def seek(self, position: int, lane: int = 0) -> None:
        """For the feature `seek`: set the committed position of a lane back. No producer is open."""
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
        """A new producer that has received the case's state."""
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
        """Wait until `number` messages of lane 0 are committed; fails if more are."""
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
        """Check that both lists have the same values, and for the feature `ordering` also the same order."""
        if self._has(Feature.ORDERING):
            assert list(delivered) == list(expected), what
        else:
            assert sorted(delivered) == sorted(expected), what

    async def _check_left(self, expected: Sequence[str], what: str) -> None:
        """Check that a new producer receives exactly `expected`, and leave them uncommitted."""
        async with await self._driving(nothing) as driver:
            await driver.count(len(expected))
            await driver.stay_quiet(self.quiet_s)
            self._check_same(driver.values, expected, what)
