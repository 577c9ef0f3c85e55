"""The producers' conformance suite: queues, whose messages are stored for a watcher that falls behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

import anyio

from triggerer.abc import BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.domain.watchers.lane_positions import encode_lane
from triggerer.testing.conformance.features import Feature, case
from triggerer.testing.conformance.resolutions import acked, all_but, failing_once, nothing
from triggerer.testing.conformance.suite import ProducerSuite
from triggerer.testing.harness import HostedView, StreamHarness

_VALUES = ["a", "b", "c"]


class StoredMessageCases(ProducerSuite):
    """The cases for the feature `queue`; part of `ProducerConformance`."""

    @case(Feature.QUEUE)
    async def test_a_message_has_a_key_and_a_lane_that_can_be_stored(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(3)
        for delivery in driver.deliveries:
            assert delivery.key is not None, "a message has no key, so it might be stored twice"
            assert encode_lane(delivery.lane) is not None, f"the lane {delivery.lane!r} is not JSON"

    @case(Feature.QUEUE)
    async def test_another_producer_loads_dumped_events(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(3)
            dumped = [driver.producer.dump_event(event) for event in driver.events]
            values = driver.values
        assert None not in dumped, "dump_event returned None for a message"
        async with await self._driving() as driver:
            loaded = [driver.producer.load_event(data) for data in dumped if data is not None]
            assert [self.value_of(event) for event in loaded] == values

    @case(Feature.QUEUE, Feature.REDELIVERY)
    async def test_a_redelivered_message_has_its_former_lane_and_key(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving(failing_once("b")) as driver:
            await driver.until(lambda: driver.values.count("b") >= 2, "b is redelivered")
            first, again = (one for one in driver.deliveries if one.value == "b")
            assert (again.lane, again.key) == (first.lane, first.key), "it would be stored twice"

    @case(Feature.QUEUE, Feature.SIZES)
    async def test_a_size_is_in_bytes(self) -> None:
        await self.publish(["a" * 5_000])
        async with await self._driving() as driver:
            await driver.advanced_count(1)
            (delivery,) = driver.deliveries
            size = driver.producer.get_size(delivery.payload)
        assert size >= len(delivery.value), f"{size} bytes for {len(delivery.value)}"

    @case(Feature.QUEUE, Feature.DEAD_LETTER)
    async def test_a_producer_can_dead_letter_a_message_that_it_never_received(self) -> None:
        """If too many messages are stored, a producer dead-letters a message that another producer received."""
        await self.publish(["a"])
        async with await self._driving() as driver:
            await driver.advanced_count(1)
            data = driver.producer.dump_event(driver.events[0])
        assert data is not None
        await self.publish(["b"])
        async with await self._driving(nothing) as driver:
            await driver.count(1)
            await driver.producer.dead_letter(driver.producer.load_event(data), "for a test")
            await driver.stay_quiet(self.quiet_s)
            assert driver.values == ["b"], "the dead-lettered message came again"
        assert await self.dead_letters() == ["a"]

    # Messages without order

    @case(Feature.QUEUE)
    async def test_a_message_without_order_is_a_lane_of_its_own(self) -> None:
        await self.publish_unordered(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(3)
        lanes = {encode_lane(delivery.lane) for delivery in driver.deliveries}
        assert None not in lanes, "a lane is not JSON"
        assert len(lanes) == 3, f"three messages have {len(lanes)} lanes"

    @case(Feature.QUEUE)
    async def test_a_message_without_order_that_is_stuck_holds_up_no_other(self) -> None:
        await self.publish_unordered(_VALUES)
        async with await self._driving(all_but("a")) as driver:
            await driver.until(lambda: acked(driver) == {"b", "c"}, "the others go on")
            await self.publish_unordered(["d"])
            await driver.until(lambda: "d" in acked(driver), "and still do")
            await driver.stay_quiet(self.quiet_s)
            assert "a" not in acked(driver)

    # Under the runtime

    @case(Feature.QUEUE)
    async def test_a_failing_watcher_misses_nothing_and_its_sibling_gets_all_once(self) -> None:
        producer = await self.new_producer()
        failing: set[str] = {"b"}
        watching = _watching(producer, self.value_of, failing)
        async with StreamHarness(catch_up=True) as streams:
            well, sick = await streams.add(watching("well")), await streams.add(watching("sick"))
            await self.publish(_VALUES)
            # The messages may come in any order, so some may reach "sick" before "b" fails. Each
            # message becomes an event of "sick", or belongs to the backlog of "sick".
            await self._until(
                lambda: len(well.events) >= 3 and len(sick.events) + len(_behind(sick)) >= 3
            )
            assert sick.behind
            # All three are committed although "sick" has a backlog.
            await self._await_committed_without(3)
            failing.clear()
            await streams.restart(sick)
            await self._until(lambda: len(sick.events) >= 3 and not sick.behind)
            await anyio.sleep(self.quiet_s)
            for view in (well, sick):
                payloads = [event.payload for event in view.events]
                self._check_same(payloads, _VALUES, f"its events are {payloads}")

    async def _until(self, condition: Callable[[], bool]) -> None:
        with anyio.move_on_after(self.patience_s):
            while True:
                if condition():
                    return
                # Poll, because neither the runtime nor the broker announces the change.
                await anyio.sleep(0.01)
        raise AssertionError(f"the condition did not become true within {self.patience_s:g} s")

    async def _await_committed_without(self, number: int) -> None:
        """Wait until `number` messages of lane 0 are committed, without a driver."""
        with anyio.move_on_after(self.patience_s):
            while True:
                if await self.committed() == number:
                    return
                await anyio.sleep(0.01)
        raise AssertionError(f"{await self.committed()} messages are committed, not {number}")


def _behind(view: HostedView) -> list[Any]:
    """The messages that are stored for a watcher, in all lanes."""
    return [event for messages in view.behind.values() for event in messages]


def _watching(
    producer: SharedStreamProducer, value_of: Callable[[Any], str | None], failing: set[str]
) -> type[Any]:
    class Watching(BaseEventTrigger):
        """Yields an event for each message. The watcher named "sick" fails at the values in `failing`."""

        def __init__(self, name: str) -> None:
            self.name = name

        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "conformance.Watching", {"name": self.name}

        def shared_stream_key(self) -> Hashable:
            return "conformance"

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
            return producer

        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            async for event in shared_stream:
                value = value_of(event)
                if self.name == "sick" and value in failing:
                    raise RuntimeError(f"fails at {value}")
                if value is not None:
                    yield TriggerEvent(value)

    return Watching
