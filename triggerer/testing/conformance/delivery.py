"""The producers' conformance suite: delivery, commits, idempotency keys, sizes and locks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from typing import Any

import anyio

from triggerer.abc import BaseEventTrigger, SharedStreamProducer, TriggerEvent
from triggerer.testing.conformance.features import Feature, case
from triggerer.testing.conformance.resolutions import all_but, gated, nothing
from triggerer.testing.conformance.suite import ProducerSuite
from triggerer.testing.harness import StreamHarness


class DeliveryCases(ProducerSuite):
    """Every message is delivered and has its own key, and only `advance` commits it; part of `ProducerConformance`."""

    @case()
    async def test_each_published_message_is_delivered_once(self) -> None:
        await self.publish(["a", "b"])
        async with await self._driving() as driver:
            await driver.count(2)
            await self.publish(["c"])
            await driver.advanced_count(3)
            await driver.stay_quiet(self.quiet_s)
            self._check_same(driver.values, ["a", "b", "c"], "before and after the start")

    @case(Feature.ORDERING)
    async def test_messages_of_a_lane_come_in_order(self) -> None:
        values = [f"m{number}" for number in range(100)]
        await self.publish(values[:50])
        async with await self._driving() as driver:
            await self.publish(values[50:])
            await driver.count(100)
            assert driver.values == values

    @case()
    async def test_the_runtime_is_served(self) -> None:
        await self.publish(["a", "b", "c"])
        producer = await self.new_producer()
        value_of = self.value_of

        class Serving(BaseEventTrigger):
            def serialize(self) -> tuple[str, dict[str, Any]]:
                return "Serving", {}

            def shared_stream_key(self) -> Hashable:
                return "conformance"

            @classmethod
            def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
                return producer

            async def filter_shared_stream(
                self, shared_stream: AsyncIterator[Any]
            ) -> AsyncIterator[TriggerEvent]:
                async for event in shared_stream:
                    if (value := value_of(event)) is not None:
                        yield TriggerEvent(value)

        async with StreamHarness() as streams:
            view = await streams.add(Serving())
            with anyio.move_on_after(self.patience_s):
                while view.error is None and (  # noqa: ASYNC110  (a broker sends no announcement)
                    len(view.events) < 3 or any(one.outstanding for one in streams.groups.values())
                ):
                    await anyio.sleep(0.01)
            assert view.error is None, f"the group ended: {view.error!r}"
            self._check_same([event.payload for event in view.events], ["a", "b", "c"], "events")
            self.state.put(streams.states.get("conformance"))
        assert await self.committed() == 3

    # Committing

    @case()
    async def test_nothing_is_committed_without_an_advance(self) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving(nothing) as driver:
            await driver.count(3)
            await driver.stay_quiet(self.quiet_s)
            assert await self.committed() == 0
        assert await self.committed() == 0, "closing committed something"
        await self._check_left(["a", "b", "c"], "after a restart")

    @case(Feature.ORDERING)
    async def test_an_advance_commits_exactly_the_contiguous_prefix(self) -> None:
        await self.publish(["a", "b", "c", "d"])
        async with await self._driving(all_but("c")) as driver:
            await driver.count(4)
            await driver.advanced_count(2)
            assert await self.committed() == 2
        assert await self.committed() == 2
        await self._check_left(["c", "d"], "after a restart")

    @case()
    async def test_an_advanced_message_does_not_come_again(self) -> None:
        await self.publish(["a", "b"])
        async with await self._driving() as driver:
            await driver.advanced_count(2)
        assert await self.committed() == 2
        await self.publish(["c"])
        await self._check_left(["c"], "after a restart")

    # Idempotency keys

    @case(Feature.IDEMPOTENCY)
    async def test_a_redelivery_carries_the_same_key(self) -> None:
        await self.publish(["a", "b"])
        keys: list[dict[str, str | None]] = []
        for _ in range(2):
            async with await self._driving(nothing) as driver:
                await driver.count(2)
                keys.append({one.value: one.key for one in driver.deliveries})
        assert keys[0] == keys[1]

    @case(Feature.IDEMPOTENCY)
    async def test_keys_differ_from_message_to_message(self) -> None:
        lanes = (0, 1) if self._has(Feature.LANES) else (0,)
        for lane in lanes:
            await self.publish([f"{lane}-{number}" for number in range(5)], lane=lane)
        async with await self._driving() as driver:
            await driver.count(5 * len(lanes))
            keys = [delivery.key for delivery in driver.deliveries]
        assert all(isinstance(key, str) and key for key in keys), keys
        assert len(set(keys)) == len(keys), keys

    @case(Feature.IDEMPOTENCY, Feature.RECREATION)
    async def test_a_recreated_source_gives_other_keys(self) -> None:
        before = await self._keys_of(["a", "b"])
        await self.recreate()
        after = await self._keys_of(["c", "d"])
        both = sorted(before & after)
        assert not both, f"messages of the source and of its successor share the keys {both}"

    async def _keys_of(self, values: list[str]) -> set[str]:
        await self.publish(values)
        async with await self._driving() as driver:
            await self._await_all(values, driver)
            await driver.advanced_count(len(values))
            keys = {one.key for one in driver.deliveries if one.value in values}
            assert None not in keys, "a message has no key"
            return {key for key in keys if key is not None}

    # Sizes

    @case(Feature.SIZES)
    async def test_a_longer_message_has_a_larger_size(self) -> None:
        short, long = "a", "b" * 1_000
        await self.publish([short, long])
        async with await self._driving() as driver:
            await driver.count(2)
            get_size = driver.producer.get_size
            sizes = {one.value: get_size(one.payload) for one in driver.deliveries}
        assert min(sizes.values()) >= 0, sizes
        assert sizes[long] - sizes[short] >= len(long) - len(short), sizes

    # Locks, seeking

    @case(Feature.LOCK_RENEWAL)
    async def test_a_message_in_flight_for_long_goes_to_no_other_producer(self) -> None:
        await self.publish(["a"])
        async with await self._driving(gated(gate := [False])) as holder:
            await holder.count(1)
            async with await self._driving(nothing) as other:
                await other.stay_quiet(self.lock_s * 3)
                assert other.values == []
                gate[0] = True
                await holder.advance()
                assert await self.committed() == 1
                await other.stay_quiet(self.quiet_s)
                assert other.values == []

    @case(Feature.LOCK_RENEWAL)
    async def test_the_messages_in_flight_of_a_closed_producer_go_to_the_next(self) -> None:
        await self.publish(["a"])
        async with await self._driving(nothing) as other:
            await other.count(1)
        await self._check_left(["a"], "after the first producer was closed")

    @case(Feature.SEEK)
    async def test_after_a_seek_messages_come_again_under_their_keys(self) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving() as driver:
            await driver.advanced_count(3)
            before = {one.value: one.key for one in driver.deliveries}
        await self.seek(1)
        assert await self.committed() == 1
        async with await self._driving() as driver:
            await driver.advanced_count(2)
            await driver.stay_quiet(self.quiet_s)
            self._check_same(driver.values, ["b", "c"], "after the seek")
            assert {one.value: one.key for one in driver.deliveries}.items() <= before.items()
