"""A trigger's failures are logged: a new error at once, and a repeated error less and less often."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.unit.streams.streams import Upstream
from tests.unit.streams.supervised import supervised
from tests.unit.streams.supervision.test_restarts import Fragile
from triggerer.streams.supervision.failure_log import FailureLog
from triggerer.testing.clock import VirtualClock


async def test_a_trigger_that_cannot_be_made_is_logged_and_seldom_again(upstream: Upstream) -> None:
    with capture_logs() as logs:
        async with supervised() as service:
            service.manager.add([Fragile(upstream, "fragile").spec(service)])
            await service.settle_down()
            (failed,) = [line for line in logs if line["event"] == "trigger failed"]
            await service.pass_time(3600)
    assert failed["log_level"] == "warning"
    assert (failed["trigger"], failed["error"]) == ("fragile", "ValueError('cannot be made')")
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert 3 <= len(warnings) <= 6


def test_an_error_is_news_if_it_is_another_or_was_away_for_ten_minutes() -> None:
    clock = VirtualClock()
    failures = FailureLog(clock)
    with capture_logs() as logs:
        for _ in range(5):
            failures.add("orders/w", ValueError("a"))
        failures.add("orders/w", ValueError("b"))
        failures.add("orders/w", ValueError("a"))
        clock.move_to(601.0)
        failures.add("orders/w", ValueError("a"))
    levels = [line["log_level"] for line in logs]
    assert levels == [
        "warning",
        "debug",
        "debug",
        "warning",
        "debug",
        "warning",
        "warning",
        "warning",
    ]
