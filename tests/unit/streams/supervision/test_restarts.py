"""Restarts as the service does them: groups opened again, members in back-off, cohorts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import anyio
import pytest

from tests.unit.streams.streams import Acking, Alone, Upstream
from tests.unit.streams.supervised import Service, forever, supervised
from triggerer.abc import AdvanceItem, AdvanceOutcome, BaseEventTrigger, TriggerEvent
from triggerer.streams import MemberState, RuntimeSettings, TriggerSpec


class Fragile:
    """Makes an `Acking` once it is allowed to."""

    def __init__(self, upstream: Upstream, name: str) -> None:
        self.upstream = upstream
        self.name = name
        self.is_broken = True

    def spec(self, service: Service) -> TriggerSpec:
        kwargs = {"upstream": self.upstream.name, "name": self.name}
        return service.spec(self, self.name, kwargs)

    def __call__(self) -> BaseEventTrigger:
        if self.is_broken:
            raise ValueError("cannot be made")
        return Acking(self.upstream.name, self.name)


@pytest.mark.rule(
    "6: a group that ends again and again is restarted at growing delays",
    "after an error the poll is opened again every second, without growing delays",
    "L3: no endless loop",
)
async def test_a_group_that_ended_is_opened_again_with_growing_delays_and_its_members_rejoin(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)
    async with supervised() as service:
        one, two = service.host(Acking(upstream.name, "one"), Acking(upstream.name, "two"))
        await service.settle_down()
        opened_at = [service.clock.monotonic()]
        for _ in range(4):
            upstream.fail(OSError("broker gone"))
            await service.settle_down()
            assert one.state == two.state == MemberState.FAILING
            assert "broker gone" in str(one.error)
            producers = len(upstream.producers)
            for _ in range(100):
                if len(upstream.producers) > producers:
                    break
                await service.pass_time(0.5)
            opened_at.append(service.clock.monotonic())
        gaps = [b - a for a, b in pairwise(opened_at)]
        assert gaps == [1, 2, 4, 8]
        assert one.state == two.state == MemberState.RUNNING
        assert one.error is None
        upstream.put(1)
        await service.settle_down()
        assert upstream.outcomes() == {1: (2, 0, 0)}
        assert upstream.closed == 4


async def test_a_group_is_opened_again_without_waiting_for_members_that_have_ended(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TakesItsTime(Acking):
        async def cleanup(self) -> None:
            await anyio.sleep(0.02)

        async def filter_shared_stream(
            self, shared_stream: AsyncIterator[Any]
        ) -> AsyncIterator[TriggerEvent]:
            try:
                async for _ in shared_stream:
                    yield TriggerEvent({})
            finally:
                await anyio.sleep(0.02)

    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)
    async with supervised(RuntimeSettings(close_timeout=60)) as service:
        service.host(TakesItsTime(upstream.name, "one"))
        await service.settle_down()
        upstream.fail(OSError("broker gone"))
        # The filter needs real time. The delay before the next group passes on the runtime's clock.
        await anyio.sleep(0.2)
        await service.pass_time(1)
        assert len(upstream.producers) == 2


@pytest.mark.rule(
    "14: nothing is broadcast before all known members of the stream have joined or failed"
)
async def test_nothing_is_broadcast_before_the_whole_cohort_has_joined_again(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        service.host(*(Acking(upstream.name, f"w{n}") for n in range(5)))
        upstream.put(0)
        await service.settle_down()
        upstream.fail(OSError("broker gone"))
        # These messages are available before any member is back.
        upstream.put(1, 2)
        await service.pass_time(2)
        assert upstream.outcomes() == dict.fromkeys(range(3), (5, 0, 0))


@pytest.mark.rule(
    "11: a failed trigger is restarted at growing delays, and shown with its error",
    "11: a sibling's success never commits a message that a watcher in back-off has not seen",
    "while a watcher is in back-off, the message that it failed is redelivered to its sibling alone",
)
async def test_a_member_in_back_off_counts_as_failed_until_it_joins_again(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)

    async def act(event: Any) -> None:
        if event == "poison":
            raise RuntimeError("boom")

    upstream.on_filter["bad"] = act
    async with supervised() as service:
        bad, good = service.host(Acking(upstream.name, "bad"), Acking(upstream.name, "good"))
        upstream.put("before", "poison")
        await service.settle_down()
        assert (bad.state, good.state) == (MemberState.FAILING, MemberState.RUNNING)
        upstream.put("meanwhile")
        await service.settle_down()
        await service.pass_time(1)
        assert bad.state is MemberState.RUNNING
        upstream.put("after")
        await service.settle_down()
        assert upstream.outcomes() == {
            "before": (2, 0, 0),
            "poison": (1, 1, 0),
            "meanwhile": (1, 1, 0),
            "after": (2, 0, 0),
        }


@pytest.mark.rule(
    "11: a trigger that returns is started again",
    "a watcher works for half an hour and then silently stops",
)
async def test_a_filter_that_returns_is_started_again(upstream: Upstream) -> None:
    async def act(event: Any) -> str:
        return "return" if event == 0 else ""

    upstream.on_filter["one"] = act
    async with supervised() as service:
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        assert one.state is MemberState.WAITING
        upstream.put(1)
        await service.pass_time(1)
        upstream.put(2)
        await service.settle_down()
        # 1 came while no filter was running, and waited.
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (1, 0, 0), 2: (1, 0, 0)}


@pytest.mark.rule(
    "11: while all members are in back-off nothing is broadcast, so the broker counts no delivery"
)
async def test_nothing_is_broadcast_while_all_members_are_in_back_off(upstream: Upstream) -> None:
    raises = True

    async def act(event: Any) -> None:
        if raises and event == 1:
            await are_there.wait()
            raise RuntimeError("trouble")

    are_there = anyio.Event()
    told: dict[Any, AdvanceOutcome] = {}

    async def note(batch: Sequence[AdvanceItem]) -> None:
        told.update({item.broker_payload[0]: item.outcome for item in batch})

    upstream.on_filter["one"] = act
    upstream.on_advance = note
    async with supervised() as service:
        (one,) = service.host(Acking(upstream.name))
        for number in range(4):
            upstream.put(number, lane=f"lane {number}")
        await service.settle_down()
        are_there.set()
        await service.settle_down()
        assert one.state is MemberState.FAILING
        assert told == {0: AdvanceOutcome(1, 0, 0)} | dict.fromkeys(
            (1, 2, 3), AdvanceOutcome(0, 1, 0)
        )
        # 2 and 3 had not been pulled when the filter raised at 1.
        assert [told[number].blames_event for number in (1, 2, 3)] == [True, False, False]
        raises = False
        upstream.put(4)
        await service.settle_down()
        assert 4 not in told
        await service.pass_time(10)
        assert one.state is MemberState.RUNNING
        assert upstream.outcomes()[4] == (1, 0, 0)


@pytest.mark.rule(
    "11: a sibling's success never commits a message that a watcher in back-off has not seen"
)
async def test_one_that_cannot_be_made_counts_as_absent_from_a_stream_that_a_sibling_opens_later(
    upstream: Upstream,
) -> None:
    fragile = Fragile(upstream, "fragile")
    async with supervised() as service:
        (broken,) = service.manager.add([fragile.spec(service)])
        await service.settle_down()
        service.host(Acking(upstream.name, "fine"))
        upstream.put(0)
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 1, 0)}
        fragile.is_broken = False
        await service.pass_time(10)
        assert broken.state is MemberState.RUNNING
        upstream.put(1)
        await service.settle_down()
        assert upstream.outcomes()[1] == (2, 0, 0)


async def test_of_several_that_cannot_be_made_the_others_are_absent_once_the_first_can(
    upstream: Upstream,
) -> None:
    first, second = Fragile(upstream, "first"), Fragile(upstream, "second")
    async with supervised() as service:
        service.manager.add([first.spec(service), second.spec(service)])
        await service.pass_time(5)
        first.is_broken = False
        upstream.put(0)
        await service.pass_time(60)
        assert upstream.outcomes() == {0: (1, 1, 0)}
        second.is_broken = False
        await service.pass_time(60)
        upstream.put(1)
        await service.settle_down()
        assert upstream.outcomes()[1] == (2, 0, 0)


async def test_one_that_cannot_be_made_can_be_removed_while_it_waits(upstream: Upstream) -> None:
    fragile = Fragile(upstream, "fragile")
    async with supervised() as service:
        (broken,) = service.manager.add([fragile.spec(service)])
        await service.settle_down()
        service.manager.remove(broken, on_purpose=True)
        fragile.is_broken = False
        await service.pass_time(120)
        assert broken.state is MemberState.ENDED
        assert upstream.producers == []


async def test_a_stream_whose_members_cannot_be_made_stays_closed_once_it_is_abandoned(
    upstream: Upstream,
) -> None:
    fragile = Fragile(upstream, "fragile")
    async with supervised() as service:
        (fine,) = service.host(Acking(upstream.name, "fine"))
        (broken,) = service.manager.add([fragile.spec(service)])
        await service.settle_down()
        service.manager.remove(fine, on_purpose=True)
        upstream.fail(OSError("broker gone"))
        await service.settle_down()
        service.manager.abandon(broken)
        fragile.is_broken = False
        await service.pass_time(300)
        assert len(upstream.producers) == 1
        assert service.manager.streams == {}


async def test_a_removed_member_in_back_off_is_not_brought_back_and_counts_no_more(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        if event == 0:
            raise RuntimeError("boom")

    upstream.on_filter["bad"] = act
    async with supervised() as service:
        bad, _ = service.host(Acking(upstream.name, "bad"), Acking(upstream.name, "good"))
        upstream.put(0)
        await service.settle_down()
        service.manager.remove(bad, on_purpose=True)
        upstream.put(1)
        await service.pass_time(60)
        upstream.put(2)
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 1, 0), 1: (1, 0, 0), 2: (1, 0, 0)}


async def test_a_stream_with_one_member_outlives_the_replacement_of_that_member(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        if event == 0:
            await forever()

    upstream.on_filter["old"] = act
    async with supervised() as service:
        (old,) = service.host(Acking(upstream.name, "old"))
        upstream.put(0, 1)
        await service.settle_down()
        service.manager.remove(old, on_purpose=False)
        service.host(Acking(upstream.name, "new"))
        await service.settle_down()
        # The old filter's unresolved message is redelivered to the new one.
        assert upstream.outcomes() == {0: (0, 1, 0), 1: (0, 1, 0)}
        upstream.put(2)
        await service.settle_down()
        assert upstream.outcomes()[2] == (1, 0, 0)
        assert len(upstream.producers) == 1


async def test_a_member_removed_in_the_same_turn_in_which_it_was_added_never_runs(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        service.host(Acking(upstream.name, "first"))
        await service.settle_down()
        (second,) = service.host(Acking(upstream.name, "second"))
        service.manager.remove(second, on_purpose=True)
        upstream.put(0)
        await service.settle_down()
        assert service.store.payloads == [{"value": 0}]
        assert second.state is MemberState.ENDED


class CleansUp(Alone):
    async def cleanup(self) -> None:
        if self.name == "cancels itself":
            raise asyncio.CancelledError


async def test_one_without_a_stream_removed_in_the_turn_in_which_it_was_added_never_runs(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        (alone,) = service.host(Alone(upstream.name))
        service.manager.remove(alone, on_purpose=True)
        upstream.put(0)
        await service.settle_down()
        assert service.store.payloads == []


async def test_a_cancellation_that_cleanup_invents_harms_nobody_else(upstream: Upstream) -> None:
    async with supervised() as service:
        (alone,) = service.host(CleansUp(upstream.name, "cancels itself"))
        await service.settle_down()
        upstream.fail(OSError("gone"))
        await service.settle_down()
        assert alone.state is MemberState.FAILING
        service.host(Acking(upstream.name, "other"))
        upstream.put(1)
        await service.settle_down()
        assert upstream.outcomes() == {1: (1, 0, 0)}


class CleanupCancels(Acking):
    async def cleanup(self) -> None:
        if self.name == "bad":
            raise asyncio.CancelledError


async def test_a_cancellation_that_a_members_cleanup_invents_does_not_end_its_group(
    upstream: Upstream,
) -> None:
    async def act(event: Any) -> None:
        raise RuntimeError("boom")

    upstream.on_filter["bad"] = act
    async with supervised() as service:
        service.host(CleanupCancels(upstream.name, "bad"), CleanupCancels(upstream.name, "good"))
        upstream.put(0)
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 1, 0)}
        assert len(upstream.producers) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), OSError("no")])
async def test_a_producer_that_cannot_be_closed_is_followed_by_another_after_the_delay(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)

    async def aclose(_: object) -> None:
        raise error

    monkeypatch.setattr("tests.unit.streams.streams.Producer.aclose", aclose)
    async with supervised() as service:
        (one,) = service.host(Acking(upstream.name))
        await service.settle_down()
        upstream.fail(OSError("broker gone"))
        await service.settle_down()
        assert one.state is MemberState.FAILING
        assert "broker gone" in str(one.error)
        assert len(upstream.producers) == 1
        await service.pass_time(1)
        assert len(upstream.producers) == 2


async def test_a_producer_whose_aclose_hangs_holds_up_the_next_one_for_the_close_timeout_only(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.streams.streams.Producer.aclose", forever)
    async with supervised() as service:
        service.host(Acking(upstream.name))
        await service.settle_down()
        upstream.fail(OSError("broker gone"))
        await anyio.sleep(0.6)
        await service.pass_time(2)
        assert len(upstream.producers) == 2


async def test_a_stream_opened_again_waits_until_its_predecessors_producer_is_closed(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = anyio.Event()

    async def aclose(_: object) -> None:
        await gate.wait()

    monkeypatch.setattr("tests.unit.streams.streams.Producer.aclose", aclose)
    async with supervised() as service:
        (one,) = service.host(Acking(upstream.name))
        await service.settle_down()
        # The lease is lost, and claimed again at once.
        service.manager.abandon(one)
        service.host(Acking(upstream.name, "again"))
        await service.settle_down()
        assert len(upstream.producers) == 1
        gate.set()
        await service.settle_down()
        assert len(upstream.producers) == 2
        upstream.put(0)
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 0, 0)}


async def test_somebody_who_comes_while_the_last_one_still_owes_answers_is_served_at_once(
    upstream: Upstream,
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        (one,) = service.host(Acking(upstream.name, "one"))
        upstream.put(0)
        await service.settle_down()
        service.manager.remove(one, on_purpose=True)
        await service.settle_down()
        service.host(Acking(upstream.name, "two"))
        upstream.put(1)
        await service.settle_down()
        assert service.store.payloads == [{"value": 0}, {"value": 1}]
        service.store.complete()
        await service.settle_down()
        assert upstream.outcomes() == {0: (1, 0, 0), 1: (1, 0, 0)}
        assert len(upstream.producers) == 1


async def test_a_stream_is_closed_while_it_drains(upstream: Upstream) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        (one,) = service.host(Acking(upstream.name))
        upstream.put(0)
        await service.settle_down()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.manager.drain, 0.2)
            await service.settle_down()
            service.manager.abandon(one)
        service.store.complete()
        await service.settle_down()
        assert upstream.advanced == []
        assert upstream.closed == 1
        assert one.state is MemberState.ENDED


class RaisesAtOnce(Acking):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        raise RuntimeError("boom")
        yield TriggerEvent({})


class RaisesAlone(RaisesAtOnce):
    def shared_stream_key(self) -> None:
        return None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        raise RuntimeError("boom")
        yield TriggerEvent({})


class CannotBeMade(Acking):
    def __init__(self, **kwargs: Any) -> None:
        raise RuntimeError("boom")


@pytest.mark.rule("11: a failed trigger is restarted at growing delays, and shown with its error")
@pytest.mark.parametrize("has_sibling", [False, True])
@pytest.mark.parametrize("kind", [RaisesAtOnce, RaisesAlone, CannotBeMade])
async def test_a_trigger_that_fails_again_and_again_is_started_after_growing_delays(
    kind: type[Acking], has_sibling: bool, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)
    async with supervised() as service:
        starts: list[float] = []

        def make() -> BaseEventTrigger:
            starts.append(service.clock.monotonic())
            return kind(upstream=upstream.name, name="fails")

        if has_sibling:
            service.host(Acking(upstream.name, "sibling"))
        (one,) = service.manager.add([service.spec(make, "fails", {"upstream": upstream.name})])
        await service.pass_time(200)
        gaps = [b - a for a, b in pairwise(starts)]
        if kind is CannotBeMade and has_sibling:
            # The sibling's stream tries all of its members when it opens.
            assert gaps.pop(0) == 0
        assert gaps == [1, 2, 4, 8, 16, 32, 60, 60]
        assert one.state is MemberState.FAILING
        assert "boom" in str(one.error)


@pytest.mark.rule(
    "11: a minute of health resets a trigger's delay, and its error is no longer shown"
)
@pytest.mark.parametrize("kind", ["in a stream", "alone"])
async def test_a_minute_of_health_resets_the_delay_before_a_trigger_is_started_again(
    kind: str, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: high)

    async def act(event: Any) -> None:
        raise RuntimeError("boom")

    upstream.on_filter["one"] = act
    async with supervised() as service:
        (one,) = service.host(
            Acking(upstream.name) if kind == "in a stream" else Alone(upstream.name)
        )

        async def restarted_after() -> int:
            if kind == "in a stream":
                upstream.put(0)
            else:
                upstream.fail(RuntimeError("boom"))
            await service.settle_down()
            waited = 0
            while one.state is MemberState.FAILING:
                assert one.error is not None
                waited += 1
                await service.pass_time(1)
            assert one.error is None
            return waited

        assert [await restarted_after() for _ in range(3)] == [1, 2, 4]
        await service.pass_time(59)
        assert await restarted_after() == 8
        await service.pass_time(60)
        assert await restarted_after() == 1


@pytest.mark.rule(
    "11: a sibling's success never commits a message that a watcher in back-off has not seen"
)
async def test_one_in_back_off_counts_as_failed_in_the_next_group_too(upstream: Upstream) -> None:
    """While a trigger cannot be created, groups run without it. They may commit no message that this trigger missed."""
    fragile = Fragile(upstream, "fragile")
    async with supervised() as service:
        service.host(Acking(upstream.name, "fine"))
        service.manager.add([fragile.spec(service)])
        for number in range(3):
            upstream.put(number)
            await service.settle_down()
            assert upstream.outcomes()[number] == (1, 1, 0)
            upstream.fail(OSError("broker gone"))
            await service.pass_time(10)
        fragile.is_broken = False
        await service.pass_time(60)
        upstream.put("after")
        await service.settle_down()
        assert upstream.outcomes()["after"] == (2, 0, 0)
