"""The producers' conformance suite: reading a log again, and storing events as bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Hashable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from triggerer.abc import SharedStreamProducer
from triggerer.testing.conformance.driver import Delivery
from triggerer.testing.conformance.features import Feature, case
from triggerer.testing.conformance.resolutions import nothing
from triggerer.testing.conformance.suite import ProducerSuite

_VALUES = ["a", "b", "c", "d"]


class RereadingCases(ProducerSuite):
    """The cases for the features `log` and `dump`; part of `ProducerConformance`."""

    @case(Feature.LOG)
    async def test_a_lane_is_read_again_from_each_position(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(4)
            producer, there = driver.producer, driver.deliveries
            for number, delivery in enumerate(there):
                position = json.loads(json.dumps(producer.get_position(delivery.payload)))
                assert position == producer.get_position(delivery.payload), "a position is not JSON"
                again = await self._read(producer, delivery, position, 4 - number)
                assert [value for value, _ in again] == _VALUES[number:]
                assert [producer.get_position(payload) for _, payload in again] == [
                    producer.get_position(other.payload) for other in there[number:]
                ]
                assert {producer.get_advance_lane(payload) for _, payload in again} == {
                    delivery.lane
                }
            numbers = [producer.get_position(delivery.payload)[1] for delivery in there]
            assert numbers == sorted(set(numbers)), "the numbers of a lane do not grow"

    @case(Feature.LOG)
    async def test_between_two_messages_the_later_is_next(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(4)
            second = driver.deliveries[1]
            incarnation, number = driver.producer.get_position(second.payload)
            again = await self._read(driver.producer, second, [incarnation, number + 1], 2)
            assert [value for value, _ in again] == ["c", "d"]

    @case(Feature.LOG, Feature.IDEMPOTENCY)
    async def test_messages_read_again_have_their_former_keys(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(4)
            producer, (first, *_) = driver.producer, driver.deliveries
            again = await self._read(producer, first, producer.get_position(first.payload), 4)
            assert [producer.get_idempotency_key(payload) for _, payload in again] == [
                delivery.key for delivery in driver.deliveries
            ]

    @case(Feature.LOG)
    async def test_read_lane_waits_for_new_messages(self) -> None:
        await self.publish(["a"])
        async with await self._driving() as driver:
            await driver.advanced_count(1)
            producer, (first,) = driver.producer, driver.deliveries
            async with aclosing(self._reading(producer, first, [])) as reading:
                assert await self._next(reading) == "a"
                await self.publish(["b"])
                assert await self._next(reading) == "b"

    @case(Feature.LOG)
    async def test_reading_again_does_not_commit(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving(nothing) as driver:
            await driver.count(1)
            first = driver.deliveries[0]
            await self._read(driver.producer, first, driver.producer.get_position(first.payload), 4)
            await driver.stay_quiet(self.quiet_s)
            assert await self.committed() == 0
        await self._check_left(_VALUES, "after a lane was read again")

    @case(Feature.LOG)
    async def test_a_position_of_a_predecessor_is_the_beginning(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(4)
            producer, last = driver.producer, driver.deliveries[3]
            _, number = producer.get_position(last.payload)
            again = await self._read(producer, last, ["another incarnation", number], 4)
            assert [value for value, _ in again] == _VALUES

    @case(Feature.LOG, Feature.RECREATION)
    async def test_positions_tell_a_recreated_source_from_its_predecessor(self) -> None:
        await self.publish(["a", "b"])
        async with await self._driving() as driver:
            await driver.advanced_count(2)
            last = driver.producer.get_position(driver.deliveries[1].payload)
        await self.recreate()
        await self.publish(["c", "d", "e"])
        async with await self._driving() as driver:
            await driver.advanced_count(3)
            producer, new = driver.producer, driver.deliveries[0]
            incarnation = producer.get_position(new.payload)[0]
            assert incarnation != last[0], f"both sources have the incarnation {incarnation!r}"
            again = await self._read(producer, new, last, 3)
            assert [value for value, _ in again] == ["c", "d", "e"], "the beginning is left out"

    @case(Feature.LOG)
    async def test_positions_are_found_by_time(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(4)
            producer, (first, *_) = driver.producer, driver.deliveries
            earliest = await producer.find_positions(None)
            again = await self._read(producer, first, earliest[first.lane], 4)
            assert [value for value, _ in again] == _VALUES
            long_ago = await producer.find_positions(datetime.now(UTC) - timedelta(days=1))
            assert long_ago[first.lane] == earliest[first.lane]
            to_come = await producer.find_positions(datetime.now(UTC) + timedelta(days=1))
            await self.publish(["e"])
            again = await self._read(producer, first, to_come[first.lane], 1)
            assert [value for value, _ in again] == ["e"]

    @case(Feature.DUMP)
    async def test_an_event_is_the_same_after_it_was_stored_as_bytes(self) -> None:
        await self.publish(_VALUES)
        async with await self._driving() as driver:
            await driver.advanced_count(4)
            producer = driver.producer
            for event in driver.events:
                data = producer.dump_event(event)
                assert isinstance(data, bytes)
                loaded = producer.load_event(data)
                assert self.value_of(loaded) == self.value_of(event)
                assert producer.dump_event(loaded) == data

    @case(Feature.DUMP)
    async def test_other_bytes_are_no_event(self) -> None:
        await self.publish(["a"])
        async with await self._driving() as driver:
            await driver.advanced_count(1)
            for data in (b"", b"\x00\xff", b"{}"):
                try:
                    driver.producer.load_event(data)
                except Exception:  # noqa: BLE001  (the producer may raise any error)
                    continue
                raise AssertionError(
                    f"load_event accepted {data!r}, which dump_event did not write"
                )

    @case(Feature.DUMP, Feature.DEAD_LETTER)
    async def test_a_stored_event_can_be_dead_lettered(self) -> None:
        await self.publish(["a"])
        async with await self._driving() as driver:
            await driver.advanced_count(1)
            (event,) = driver.events
            data = driver.producer.dump_event(event)
            assert data is not None
            await driver.producer.dead_letter(driver.producer.load_event(data), "for a test")
            assert await self.dead_letters() == ["a"]

    # Reading

    async def _read(
        self, producer: SharedStreamProducer, of: Delivery, position: list[Any], count: int
    ) -> list[tuple[str, Any]]:
        """Read `count` messages of a delivery's lane from a position; fails if there are more or fewer."""
        found: list[tuple[str, Any]] = []
        async with aclosing(self._reading(producer, of, found, position)) as reading:
            for _ in range(count):
                await self._next(reading)
            with anyio.move_on_after(self.quiet_s):
                await self._next(reading)
                raise AssertionError(f"more than {count}: {found}")
        return found

    async def _reading(
        self,
        producer: SharedStreamProducer,
        of: Delivery,
        found: list[tuple[str, Any]],
        position: list[Any] | None = None,
    ) -> AsyncGenerator[str, None]:
        if position is None:
            position = producer.get_position(of.payload)
        messages = producer.read_lane(_as_stored(of.lane), position)
        assert isinstance(messages, AsyncGenerator), "read_lane() is not an async generator"
        async with aclosing(messages):
            async for event, payload in messages:
                if (value := self.value_of(event)) is not None:
                    found.append((value, payload))
                    yield value

    async def _next(self, reading: AsyncGenerator[str, None]) -> str:
        with anyio.move_on_after(self.patience_s):
            try:
                return await anext(reading)
            except StopAsyncIteration:
                raise AssertionError("read_lane() returned") from None
        raise AssertionError(f"read_lane() yielded no message in {self.patience_s:g} s")


def _as_stored(lane: Hashable) -> Hashable:
    """The lane as the store returns it: from JSON, whose lists become tuples again."""
    return _with_tuples(json.loads(json.dumps(lane)))


def _with_tuples(value: Any) -> Hashable:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
