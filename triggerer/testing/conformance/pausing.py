"""The producers' conformance suite: pausing the whole stream or one lane."""

from __future__ import annotations

from collections.abc import Hashable

from triggerer.testing.conformance.driver import Driver
from triggerer.testing.conformance.features import Feature, case
from triggerer.testing.conformance.resolutions import gated
from triggerer.testing.conformance.suite import ProducerSuite


class PausingCases(ProducerSuite):
    """The cases for the features `pause` and `pause_lanes`; part of `ProducerConformance`."""

    @case(Feature.PAUSE)
    async def test_a_pause_stops_the_delivery_and_keeps_the_position(self) -> None:
        await self.publish(["a", "b"])
        async with await self._driving() as driver:
            await driver.advanced_count(2)
            await driver.producer.pause()
            await self.publish(["c", "d"])
            await driver.stay_quiet(self.quiet_s)
            assert sorted(driver.values) == ["a", "b"], "delivered in spite of the pause"
            assert await self.committed() == 2
            await driver.producer.resume()
            await driver.advanced_count(4)
            await driver.stay_quiet(self.quiet_s)
            self._check_same(driver.values, ["a", "b", "c", "d"], "after the pause")
            assert await self.committed() == 4

    @case(Feature.PAUSE)
    async def test_an_advance_counts_during_a_pause(self) -> None:
        await self.publish(["a"])
        async with await self._driving(gated(gate := [False])) as driver:
            await driver.count(1)
            await driver.producer.pause()
            gate[0] = True
            await driver.advance()
            assert await self.committed() == 1

    @case(Feature.LANES, Feature.PAUSE_LANES)
    async def test_a_paused_lane_delivers_nothing_while_the_others_go_on(self) -> None:
        held, others = _numbered("a", 10), _numbered("b", 10)
        await self.publish(held)
        await self.publish(others[:5], lane=1)
        async with await self._driving() as driver:
            _pause_lane_after(3, "a", driver)
            await driver.until(lambda: _count("a", driver) >= 3, "three of the lane come")
            await driver.until(lambda: set(others[:5]) <= set(driver.values), "the others come")
            await self.publish(others[5:], lane=1)
            await driver.until(lambda: set(others) <= set(driver.values), "the others go on")
            await driver.stay_quiet(self.quiet_s)
            assert _count("a", driver) == 3, "delivered although the lane is paused"
            await driver.producer.resume_lane(_lane_of("a", driver))
            await driver.advanced_count(20)
            await driver.stay_quiet(self.quiet_s)
            self._check_same(_values_of("a", driver), held, "lost or repeated by the pause")
            self._check_same(_values_of("b", driver), others, "the other lane")
        assert (await self.committed(), await self.committed(lane=1)) == (10, 10)

    @case(Feature.LANES, Feature.PAUSE_LANES)
    async def test_an_advance_counts_while_its_lane_is_paused(self) -> None:
        await self.publish(_numbered("a", 4))
        async with await self._driving(gated(gate := [False])) as driver:
            _pause_lane_after(2, "a", driver)
            await driver.count(2)
            await driver.stay_quiet(self.quiet_s)
            gate[0] = True
            await driver.advance()
            assert await self.committed() == 2
            await driver.producer.resume_lane(_lane_of("a", driver))
            await driver.advanced_count(4)
            self._check_same(driver.values, _numbered("a", 4), "after the pause")
            assert await self.committed() == 4

    @case(Feature.LANES, Feature.PAUSE, Feature.PAUSE_LANES)
    async def test_a_lane_stays_paused_while_the_stream_is_paused_and_resumed(self) -> None:
        await self.publish(_numbered("a", 4))
        async with await self._driving() as driver:
            _pause_lane_after(2, "a", driver)
            await driver.count(2)
            await driver.producer.pause()
            await driver.producer.resume()
            await self.publish(["b0"], lane=1)
            await driver.until(lambda: "b0" in driver.values, "the other lane goes on")
            # The runtime may also resume a lane that is not paused.
            await driver.producer.resume_lane(_lane_of("b", driver))
            await driver.stay_quiet(self.quiet_s)
            assert _count("a", driver) == 2, "delivered although the lane is paused"
            await driver.producer.resume_lane(_lane_of("a", driver))
            await driver.advanced_count(5)
            self._check_same(_values_of("a", driver), _numbered("a", 4), "after the pause")


def _numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


def _values_of(letter: str, driver: Driver) -> list[str]:
    return [value for value in driver.values if value.startswith(letter)]


def _count(letter: str, driver: Driver) -> int:
    return len(_values_of(letter, driver))


def _lane_of(letter: str, driver: Driver) -> Hashable:
    return next(one.lane for one in driver.deliveries if one.value.startswith(letter))


def _pause_lane_after(number: int, letter: str, driver: Driver) -> None:
    """Once `number` values with this letter have come, pause their lane before the next pull, as the runtime does."""
    is_paused = False

    async def look() -> None:
        nonlocal is_paused
        if not is_paused and _count(letter, driver) >= number:
            is_paused = True
            await driver.producer.pause_lane(_lane_of(letter, driver))

    driver.before_pull = look
