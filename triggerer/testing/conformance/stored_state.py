"""The producers' conformance suite: a producer's state in the store."""

from __future__ import annotations

from triggerer.errors import StoreError
from triggerer.testing.conformance.driver import Driver
from triggerer.testing.conformance.features import Feature, case
from triggerer.testing.conformance.resolutions import all_but, failing, nothing
from triggerer.testing.conformance.suite import ProducerSuite
from triggerer.testing.memory_state import InMemoryState


class StoredStateCases(ProducerSuite):
    """The cases for the feature `state`; part of `ProducerConformance`.

    A saved state must not count a message as done before the message's advance. A new producer that receives the state
    must continue without a gap.
    """

    @case(Feature.STATE)
    async def test_a_state_that_is_not_saved_passes_nothing(self) -> None:
        await self._needs_state()
        await self.publish(["a", "b"])
        before: dict[str, str | None] = {}
        # A producer may save its starting position before its first advance. So open a producer while saving works.
        async with await self._driving(nothing) as driver:
            await driver.count(2)
        self.state.refusal = StoreError("another instance owns the stream")
        async with await self._driving() as driver:
            await driver.count(2)
            before = self._keys(driver)
            await driver.ends_with(StoreError)
        self.state.refusal = None
        async with await self._driving() as driver:
            await driver.advanced_count(2)
            assert self._keys(driver) == before, "the messages came again with other keys"
        assert await self.committed() == 2

    @case(Feature.STATE)
    async def test_no_state_passes_a_failed_or_open_message(self) -> None:
        await self._needs_state()
        await self.publish(["a", "b", "c", "d"])
        for resolve, left in ((all_but("c"), {"c"}), (failing("c"), {"c"})):
            self.state = InMemoryState()
            async with await self._driving(resolve) as driver:
                await driver.count(4)
                await driver.advanced_count(2)
                await driver.stay_quiet(self.quiet_s)
                saved = [None, *self.state.history]
            for value in saved:
                self.state = InMemoryState(value)
                async with await self._driving(nothing) as successor:
                    await self._await_all(sorted(left), successor)

    @case(Feature.STATE)
    async def test_a_successor_goes_on_from_any_state_without_a_gap(self) -> None:
        await self._needs_state()
        await self.publish(["a", "b"])
        async with await self._driving() as driver:
            await driver.advanced_count(2)
            keys = self._keys(driver)
        await self.publish(["c"])
        async with await self._driving() as driver:
            await driver.advanced_count(1)
            keys |= self._keys(driver)
            await driver.stay_quiet(self.quiet_s)
            assert driver.values == ["c"]
        states = list(self.state.history)
        for value in states:
            self.state = InMemoryState(value)
            async with await self._driving() as driver:
                await self._await_committed(3, driver)
                again = self._keys(driver)
                changed = {one for one in again.keys() & keys.keys() if again[one] != keys[one]}
                assert not changed, f"the keys of {changed} have changed"

    async def _needs_state(self) -> None:
        producer = await self.new_producer()
        try:
            self._skip_without_state(producer)
        finally:
            await producer.aclose()

    @staticmethod
    def _keys(driver: Driver) -> dict[str, str | None]:
        return {one.value: one.key for one in driver.deliveries}
