"""Events that the store refuses are reported, from whichever filter: otherwise a message fails without a reason."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.unit.streams.streams import Acking, Alone, Fast, Upstream, Watching
from tests.unit.streams.supervised import supervised
from triggerer.errors import LeaseLost, NotSetAside, RowRefused
from triggerer.streams import MemberState


@pytest.mark.parametrize("kind", [Acking, Fast, Alone])
async def test_a_refused_event_is_logged_and_shown_and_its_trigger_runs_on(
    kind: type[Watching], upstream: Upstream
) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        (one,) = service.host(kind(upstream.name))
        upstream.put("large")
        await service.settle_down()
        service.states.clear()
        with capture_logs() as lines:
            service.store.complete(RowRefused("a payload is too large", hint="store it elsewhere"))
        assert service.states == [("one", "running")]
        assert one.refusals.latest == (
            "an asset event was refused, at 2026-01-01 00:00:00Z: a payload is too large (store it elsewhere)"
        )
        assert (one.state, one.error) == (MemberState.RUNNING, None)
    assert lines == [
        {
            "event": "asset event refused",
            "log_level": "warning",
            "trigger": "one",
            "error": "a payload is too large (store it elsewhere)",
            "refused": 1,
        }
    ]


async def test_of_many_one_is_told_in_a_second_and_all_are_counted(upstream: Upstream) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        (one,) = service.host(Fast(upstream.name))
        with capture_logs() as lines:
            for reason in ("first", "second", "third"):
                upstream.put(*range(100))
                await service.settle_down()
                service.store.complete(RowRefused(reason))
                await service.pass_time(0.6)
        told = [line for line in lines if line["event"] == "asset event refused"]
        assert [(line["error"], line["refused"]) for line in told] == [
            ("first", 1),
            ("third", 201),
        ]
        assert one.refusals.latest == (
            "300 asset events were refused, at 2026-01-01 00:00:01Z: third"
        )


async def test_an_error_that_is_no_fault_of_the_event_is_no_refusal(upstream: Upstream) -> None:
    async with supervised() as service:
        service.store.is_automatic = False
        (one,) = service.host(Fast(upstream.name))
        upstream.put(0)
        await service.settle_down()
        service.store.complete(LeaseLost("the stream is no longer ours"))
        assert one.refusals.latest is None


async def test_a_message_that_cannot_be_parked_is_no_refused_event(upstream: Upstream) -> None:
    async with supervised() as service:
        (one,) = service.host(Fast(upstream.name))
        with capture_logs() as lines:
            one.refusals.record(NotSetAside("the table is full"))
            assert one.refusals.latest == (
                "a message cannot be parked, at 2026-01-01 00:00:00Z: the table is full"
            )
            await service.pass_time(1)
            one.refusals.record(RowRefused("too large"))
        assert one.refusals.latest == (
            "an asset event was refused, at 2026-01-01 00:00:01Z: too large"
        )
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["event"], line.get("refused")) for line in warnings] == [
        ("message not parked", None),
        ("asset event refused", 1),
    ]
