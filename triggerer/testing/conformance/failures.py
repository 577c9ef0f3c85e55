"""The producers' conformance suite: failed and rejected messages, dead letters, and lanes."""

from __future__ import annotations

from dataclasses import replace

from triggerer.abc import AdvanceOutcome
from triggerer.testing.conformance.driver import (
    ACKED,
    FAILED,
    NOBODY,
    REJECTED,
    UNREAD,
    Delivery,
    Driver,
)
from triggerer.testing.conformance.features import Feature, case
from triggerer.testing.conformance.resolutions import (
    acked,
    all_but,
    failed,
    failing,
    failing_once,
    first,
    nothing,
    once,
    outcomes,
)
from triggerer.testing.conformance.suite import ProducerSuite


class FailureCases(ProducerSuite):
    """The cases for failed and rejected messages, dead letters and lanes; part of `ProducerConformance`."""

    @case(Feature.REDELIVERY)
    async def test_a_failed_message_comes_again(self) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving(failing_once("b")) as driver:
            await driver.until(lambda: driver.values.count("b") >= 2, "b is redelivered")
            await self._await_committed(3, driver)

    @case()
    async def test_a_failed_message_is_not_passed_by_its_own_batch(self) -> None:
        await self.publish(["a", "b", "c"])
        is_open = False

        def resolve(delivery: Delivery) -> AdvanceOutcome | None:
            if not is_open:
                return None
            return FAILED if delivery.value == "b" else ACKED

        async with await self._driving(resolve) as driver:
            await driver.count(3)
            is_open = True
            await driver.advance()
            await self._check_not_committed("b", before=1, of=3)
        await self._check_comes("b", is_first=True)

    @case()
    async def test_a_failed_message_is_not_passed_by_a_later_batch_nor_after_a_restart(
        self,
    ) -> None:
        await self.publish(["a", "b"])
        resolve = failing("b")
        async with await self._driving(resolve) as driver:
            await driver.until(lambda: failed(driver) >= {"b"}, "b fails")
            await self.publish(["c", "d"])
            await driver.stay_quiet(self.quiet_s)
            await self._check_not_committed("b", before=1, of=4)
        await self._check_not_committed("b", before=1, of=4)
        await self._check_comes("b", is_first=True)

    async def _check_not_committed(self, value: str, *, before: int, of: int) -> None:
        committed = await self.committed()
        limit = before if self._has(Feature.ORDERING) else of - 1
        assert committed <= limit or (
            self._has(Feature.DEAD_LETTER) and value in await self.dead_letters()
        ), f"{committed} messages out of {of} are committed although {value} failed"

    async def _check_comes(self, value: str, *, is_first: bool) -> None:
        if self._has(Feature.DEAD_LETTER) and value in await self.dead_letters():
            return
        async with await self._driving(nothing) as driver:
            await driver.until(lambda: value in driver.values, f"{value} comes after a restart")
            if is_first and self._has(Feature.ORDERING):
                assert driver.values[0] == value, driver.values

    @case()
    async def test_a_rejected_message_does_not_come_again(self) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving(
            lambda delivery: REJECTED if delivery.value == "b" else ACKED
        ) as driver:
            await driver.advanced_count(3)
            await driver.stay_quiet(self.quiet_s)
            assert driver.values.count("b") == 1
        await self.publish(["d"])
        await self._check_left(["d"], "after a restart")

    @case()
    async def test_a_message_that_is_rejected_and_failed_comes_again(self) -> None:
        await self.publish(["a"])
        both = AdvanceOutcome(acked=0, failed=1, rejected=1)
        async with await self._driving(once("a", both)) as driver:
            await driver.until(lambda: ("a", both) in outcomes(driver), "a fails")
        await self._check_comes_or_came(driver, "a")

    @case()
    async def test_a_message_without_subscribers_is_not_committed(self) -> None:
        await self.publish(["a"])
        async with await self._driving(once("a", NOBODY)) as driver:
            await driver.until(lambda: ("a", NOBODY) in outcomes(driver), "a is advanced")
            assert await self.committed() == 0
        assert await self.committed() == 0
        await self._check_left(["a"], "after a restart")

    async def _check_comes_or_came(self, driver: Driver, value: str) -> None:
        assert await self.committed() == 0
        if driver.values.count(value) < 2:
            await self._check_left([value], "after a restart")

    @case(Feature.DEAD_LETTER)
    async def test_a_message_that_reaches_the_limit_is_dead_lettered_and_the_rest_goes_on(
        self,
    ) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving(failing("b")) as driver:
            await self._await_committed(3, driver)
            assert driver.values.count("b") == self.max_deliveries
        assert await self.dead_letters() == ["b"]

    @case(Feature.DEAD_LETTER, Feature.REDELIVERY)
    async def test_a_failure_at_another_message_is_not_counted(self) -> None:
        await self._check_not_counted(UNREAD)

    @case(Feature.DEAD_LETTER, Feature.REDELIVERY)
    async def test_a_delivery_without_subscribers_is_not_counted(self) -> None:
        await self._check_not_counted(NOBODY)

    async def _check_not_counted(self, outcome: AdvanceOutcome) -> None:
        """Check that an outcome whose `blames_event` is false is not counted as a failure.

        Message "b" must come again after each such outcome, and must not be dead-lettered.
        """
        await self.publish(["a", "b", "c"])
        times = self.max_deliveries + 1
        async with await self._driving(first("b", outcome, times)) as driver:
            await self._await_committed(3, driver)
            dead = await self.dead_letters()
            assert not dead, (
                f"{dead} is dead-lettered; count a failure only if `outcome.blames_event`"
            )
            count = driver.values.count("b")
            assert count == times + 1, f"b came {count} times, and not {times + 1} times"

    @case(Feature.DEAD_LETTER)
    async def test_a_rejected_message_goes_to_the_dead_letters(self) -> None:
        await self.publish(["a", "b", "c"])
        asked: list[bool] = []

        def resolve(delivery: Delivery) -> AdvanceOutcome:
            if delivery.value != "b":
                return ACKED
            asked.append(driver.producer.dead_letters_rejected(delivery.payload))
            return REJECTED

        async with await self._driving(resolve) as driver:
            await self._await_committed(3, driver)
        dead = await self.dead_letters()
        assert dead == ["b"], f"b was rejected, but `advance` has dead-lettered {dead}"
        assert asked == [True], "`dead_letters_rejected` must be true if `advance` dead-letters it"

    @case(Feature.DEAD_LETTER)
    async def test_a_rejected_message_that_is_parked_is_no_dead_letter(self) -> None:
        await self.publish(["a", "b", "c"])
        is_aside = replace(REJECTED, is_set_aside=True)
        async with await self._driving(first("b", is_aside, 1)) as driver:
            await self._await_committed(3, driver)
        dead = await self.dead_letters()
        assert not dead, f"the runtime has parked b, but {dead} is dead-lettered too"

    # Lanes

    @case(Feature.LANES)
    async def test_a_message_reports_the_lane_it_was_published_to(self) -> None:
        await self.publish(["a0", "a1"], lane=0)
        await self.publish(["b0", "b1"], lane=1)
        async with await self._driving() as driver:
            await driver.count(4)
            lanes = {delivery.value: delivery.lane for delivery in driver.deliveries}
        assert lanes["a0"] == lanes["a1"]
        assert lanes["b0"] == lanes["b1"]
        assert lanes["a0"] != lanes["b0"]

    @case(Feature.LANES)
    async def test_a_stuck_lane_holds_up_no_other(self) -> None:
        await self.publish(["stuck", "behind"], lane=0)
        await self.publish(["b0", "b1"], lane=1)
        async with await self._driving(all_but("stuck")) as driver:
            await driver.until(lambda: {"b0", "b1"} <= acked(driver), "the other lane goes on")
            await self.publish(["b2"], lane=1)
            await driver.until(lambda: "b2" in acked(driver), "and still does")
            assert await self.committed(lane=1) == 3
            assert await self.committed(lane=0) == 0

    @case(Feature.LANES)
    async def test_a_failing_lane_holds_up_no_other(self) -> None:
        await self.publish(["bad"], lane=0)
        await self.publish(["b0", "b1"], lane=1)
        async with await self._driving(failing("bad")) as driver:
            await driver.until(lambda: {"b0", "b1"} <= acked(driver), "the other lane goes on")
            assert await self.committed(lane=1) == 2
