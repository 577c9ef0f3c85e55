"""The conformance suite for producers: what the runtime relies on, tried on a real broker or a double."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, ClassVar

import anyio

from triggerer.abc import (
    AdvanceItem,
    AdvanceOutcome,
    BaseEventTrigger,
    SharedStreamProducer,
    TriggerEvent,
)
from triggerer.testing.driving import (
    ACKED,
    FAILED,
    NOBODY,
    REJECTED,
    Delivery,
    Driver,
    Resolve,
    cancelled_at,
    close,
    driving,
)
from triggerer.testing.features import Feature, case, checked_features
from triggerer.testing.harness import StreamHarness
from triggerer.testing.pausing import PausingCases

_ORDERING = Feature.ORDERING


class ProducerConformance(PausingCases):
    """Subclass it as `TestMyBroker`, declare the broker's features, and implement the hooks.

    Each case runs in an event loop of its own, between `setup` and `teardown`; it publishes to lanes 0, 1, … of a
    source that `setup` has made empty. A case for a feature that is not declared is skipped, and says which.
    No case relies on time: what must happen has `patience_s` to happen; `quiet_s` is how long a case watches that
    something does not.
    """

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

    async def committed(self, lane: int = 0) -> int:
        """How many of the messages published to the lane no new producer is given."""
        raise NotImplementedError

    def value_of(self, event: Any) -> str | None:
        """The published value of a raw event; None for an event that is no message."""
        return str(event)

    async def dead_letters(self) -> list[str]:
        """With dead_letter: the values that were set aside."""
        raise NotImplementedError

    async def seek(self, position: int, lane: int = 0) -> None:
        """With seek: set the committed position of a lane back; no producer is open."""
        raise NotImplementedError

    # Running

    async def run_case(self, body: Callable[[], Awaitable[None]]) -> None:
        """Run one case between `setup` and `teardown`."""
        try:
            await self.setup()
            await body()
        finally:
            await self.teardown()

    async def _driving(
        self, resolve: Resolve = lambda _: ACKED
    ) -> AbstractAsyncContextManager[Driver]:
        return self._drive(await self.new_producer(), resolve)

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
        if self._has(_ORDERING):
            assert list(delivered) == list(expected), what
        else:
            assert sorted(delivered) == sorted(expected), what

    async def _check_left(self, expected: Sequence[str], what: str) -> None:
        """A new producer is given exactly `expected`; they stay uncommitted."""
        async with await self._driving(_nothing) as driver:
            await driver.count(len(expected))
            await driver.stay_quiet(self.quiet_s)
            self._check_same(driver.values, expected, what)

    # Delivery

    @case()
    async def test_what_is_published_is_delivered_once(self) -> None:
        await self.publish(["a", "b"])
        async with await self._driving() as driver:
            await driver.count(2)
            await self.publish(["c"])
            await driver.advanced_count(3)
            await driver.stay_quiet(self.quiet_s)
            self._check_same(driver.values, ["a", "b", "c"], "before and after the start")

    @case(_ORDERING)
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
                while view.error is None and (  # noqa: ASYNC110  (a broker tells nobody)
                    len(view.events) < 3 or any(one.outstanding for one in streams.groups.values())
                ):
                    await anyio.sleep(0.01)
            assert view.error is None, f"the group ended: {view.error!r}"
            self._check_same([event.payload for event in view.events], ["a", "b", "c"], "events")
        assert await self.committed() == 3

    # Committing

    @case()
    async def test_nothing_is_committed_without_an_advance(self) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving(_nothing) as driver:
            await driver.count(3)
            await driver.stay_quiet(self.quiet_s)
            assert await self.committed() == 0
        assert await self.committed() == 0, "closing committed something"
        await self._check_left(["a", "b", "c"], "after a restart")

    @case(_ORDERING)
    async def test_an_advance_commits_exactly_the_contiguous_prefix(self) -> None:
        await self.publish(["a", "b", "c", "d"])
        async with await self._driving(_all_but("c")) as driver:
            await driver.count(4)
            await driver.advanced_count(2)
            assert await self.committed() == 2
        assert await self.committed() == 2
        await self._check_left(["c", "d"], "after a restart")

    @case()
    async def test_what_was_advanced_does_not_come_again(self) -> None:
        await self.publish(["a", "b"])
        async with await self._driving() as driver:
            await driver.advanced_count(2)
        assert await self.committed() == 2
        await self.publish(["c"])
        await self._check_left(["c"], "after a restart")

    # Failing and rejecting

    @case(Feature.REDELIVERY)
    async def test_a_failed_message_comes_again(self) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving(_failing_once("b")) as driver:
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
            await self._check_held("b", before=1, of=3)
        await self._check_comes("b", first=True)

    @case()
    async def test_a_failed_message_is_not_passed_by_a_later_batch_nor_after_a_restart(
        self,
    ) -> None:
        await self.publish(["a", "b"])
        resolve = _failing("b")
        async with await self._driving(resolve) as driver:
            await driver.until(lambda: _failed(driver) >= {"b"}, "b fails")
            await self.publish(["c", "d"])
            await driver.stay_quiet(self.quiet_s)
            await self._check_held("b", before=1, of=4)
        await self._check_held("b", before=1, of=4)
        await self._check_comes("b", first=True)

    async def _check_held(self, value: str, *, before: int, of: int) -> None:
        committed = await self.committed()
        limit = before if self._has(_ORDERING) else of - 1
        assert committed <= limit or (
            self._has(Feature.DEAD_LETTER) and value in await self.dead_letters()
        ), f"{committed} of {of} are committed although {value} failed"

    async def _check_comes(self, value: str, *, first: bool) -> None:
        if self._has(Feature.DEAD_LETTER) and value in await self.dead_letters():
            return
        async with await self._driving(_nothing) as driver:
            await driver.until(lambda: value in driver.values, f"{value} comes after a restart")
            if first and self._has(_ORDERING):
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
    async def test_one_that_is_rejected_and_failed_comes_again(self) -> None:
        await self.publish(["a"])
        both = AdvanceOutcome(acked=0, failed=1, rejected=1)
        async with await self._driving(_once("a", both)) as driver:
            await driver.until(lambda: ("a", both) in _outcomes(driver), "a fails")
        await self._check_comes_or_came(driver, "a")

    @case()
    async def test_a_message_that_nobody_subscribed_to_is_not_committed(self) -> None:
        await self.publish(["a"])
        async with await self._driving(_once("a", NOBODY)) as driver:
            await driver.until(lambda: ("a", NOBODY) in _outcomes(driver), "a is advanced")
            assert await self.committed() == 0
        assert await self.committed() == 0
        await self._check_left(["a"], "after a restart")

    async def _check_comes_or_came(self, driver: Driver, value: str) -> None:
        assert await self.committed() == 0
        if driver.values.count(value) < 2:
            await self._check_left([value], "after a restart")

    @case(Feature.DEAD_LETTER)
    async def test_a_message_that_reaches_the_limit_is_set_aside_and_the_rest_goes_on(
        self,
    ) -> None:
        await self.publish(["a", "b", "c"])
        async with await self._driving(_failing("b")) as driver:
            await self._await_committed(3, driver)
            assert driver.values.count("b") == self.max_deliveries
        assert await self.dead_letters() == ["b"]

    # Idempotency keys

    @case(Feature.IDEMPOTENCY)
    async def test_a_redelivery_carries_the_same_key(self) -> None:
        await self.publish(["a", "b"])
        keys: list[dict[str, str | None]] = []
        for _ in range(2):
            async with await self._driving(_nothing) as driver:
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

    # Lanes

    @case(Feature.LANES)
    async def test_messages_of_one_lane_have_its_lane_and_no_other(self) -> None:
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
        async with await self._driving(_all_but("stuck")) as driver:
            await driver.until(lambda: {"b0", "b1"} <= _acked(driver), "the other lane goes on")
            await self.publish(["b2"], lane=1)
            await driver.until(lambda: "b2" in _acked(driver), "and still does")
            assert await self.committed(lane=1) == 3
            assert await self.committed(lane=0) == 0

    @case(Feature.LANES)
    async def test_a_failing_lane_holds_up_no_other(self) -> None:
        await self.publish(["bad"], lane=0)
        await self.publish(["b0", "b1"], lane=1)
        async with await self._driving(_failing("bad")) as driver:
            await driver.until(lambda: {"b0", "b1"} <= _acked(driver), "the other lane goes on")
            assert await self.committed(lane=1) == 2

    # Locks, seeking

    @case(Feature.LOCK_RENEWAL)
    async def test_what_is_held_for_long_is_given_to_no_other(self) -> None:
        await self.publish(["a"])
        async with await self._driving(_gated(gate := [False])) as holder:
            await holder.count(1)
            async with await self._driving(_nothing) as other:
                await other.stay_quiet(self.lock_s * 3)
                assert other.values == []
                gate[0] = True
                await holder.advance()
                assert await self.committed() == 1
                await other.stay_quiet(self.quiet_s)
                assert other.values == []

    @case(Feature.LOCK_RENEWAL)
    async def test_what_a_closed_producer_held_is_given_to_the_next(self) -> None:
        await self.publish(["a"])
        async with await self._driving(_nothing) as other:
            await other.count(1)
        await self._check_left(["a"], "after the holder was closed")

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

    # Closing and cancelling

    @case()
    async def test_a_producer_that_was_never_opened_can_be_closed(self) -> None:
        await self.publish(["a"])
        await close(await self.new_producer(), self.patience_s)
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
                break  # what it was cancelled at was the wait for a fourth one
            came = []
            producer = await self.new_producer()
            try:
                cancelled += await cancelled_at(self._pull(producer, came), wait)
            finally:
                await close(producer, self.patience_s)
            assert await self.committed() == 0, f"cancelled at wait {wait}"
        assert cancelled, "open_stream() never awaits anything"
        await self._check_left(["a", "b", "c"], "after the last cancellation")

    async def _pull(self, producer: SharedStreamProducer, came: list[str]) -> None:
        """Pull and resolve no message, until three came and nothing more comes."""
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
        left: Counter[str] = Counter()
        cancelled = 0
        for wait in self.cancel_at:
            more = [f"{wait}-a", f"{wait}-b"]
            await self.publish(more)
            published += more
            left.update(more)
            was_cancelled = True
            async with await self._driving(_nothing) as driver:
                await self._await_all(more, driver)
                came = driver.values
                # Whatever is committed is a prefix: what comes is the rest, whole and in order.
                if self._has(_ORDERING):
                    assert came == published[len(published) - len(came) :]
                assert not Counter(came) - left, "something came again that had been committed"
                left = Counter(came)
                for payloads in driver.pending():
                    batch = [AdvanceItem(payload, ACKED) for payload in payloads]
                    was_cancelled &= await cancelled_at(driver.producer.advance(batch), wait)
            cancelled += was_cancelled
            if not was_cancelled:
                break
        assert cancelled, "advance() never awaits anything"
        await self.publish(["last"])
        async with await self._driving() as driver:
            await driver.until(lambda: "last" in _acked(driver), "the last one is acked")
            assert not Counter(driver.values) - (left + Counter(["last"]))
            if not was_cancelled and self._has(_ORDERING):
                assert driver.values == ["last"], "an advance that returned was not committed"


def _nothing(_: Delivery) -> None:
    return None


def _all_but(held: str) -> Resolve:
    return lambda delivery: None if delivery.value == held else ACKED


def _failing(value: str) -> Resolve:
    return lambda delivery: FAILED if delivery.value == value else ACKED


def _once(value: str, outcome: AdvanceOutcome) -> Resolve:
    """That outcome the first time; afterwards nothing of it is resolved."""
    seen = 0

    def resolve(delivery: Delivery) -> AdvanceOutcome | None:
        nonlocal seen
        if delivery.value != value:
            return ACKED
        seen += 1
        return outcome if seen == 1 else None

    return resolve


def _failing_once(value: str) -> Resolve:
    has_failed = False

    def resolve(delivery: Delivery) -> AdvanceOutcome:
        nonlocal has_failed
        if delivery.value == value and not has_failed:
            has_failed = True
            return FAILED
        return ACKED

    return resolve


def _gated(gate: list[bool]) -> Resolve:
    def resolve(_: Delivery) -> AdvanceOutcome | None:
        return ACKED if gate[0] else None

    return resolve


def _outcomes(driver: Driver) -> list[tuple[str, AdvanceOutcome]]:
    return [(delivery.value, outcome) for delivery, outcome in driver.advanced]


def _acked(driver: Driver) -> set[str]:
    return {value for value, outcome in _outcomes(driver) if outcome.is_clean}


def _failed(driver: Driver) -> set[str]:
    return {value for value, outcome in _outcomes(driver) if outcome.failed}
