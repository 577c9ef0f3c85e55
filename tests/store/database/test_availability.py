"""An outage of the database is logged when it begins, then less and less often, and when it ends."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from structlog.testing import capture_logs

from triggerer.errors import StoreRefused, StoreUnavailable
from triggerer.store.database.availability import Availability, Use


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _told(logs: list[MutableMapping[str, Any]]) -> list[tuple[str, float]]:
    return [(log["event"], log.get("for_s", log.get("after_s"))) for log in logs]


def test_an_outage_that_lasts_has_lines_at_growing_distances() -> None:
    clock = Clock()
    availability = Availability("the database", clock)
    refused = StoreRefused("no login", hint="check the password")
    with capture_logs() as logs:
        for _ in range(300):
            availability.record_failure(Use.WRITES, refused)
            clock.now += 1
        assert availability.trouble is not None
        availability.record_success(Use.WRITES)
    assert availability.trouble is None
    away = "the database is away"
    times = [0, 5, 15, 35, 75, 155]
    assert _told(logs) == [*((away, float(s)) for s in times), ("the database is back", 300.0)]
    assert logs[0]["hint"] == "check the password"


def test_a_new_reason_is_logged_at_once_and_a_known_one_is_not() -> None:
    clock = Clock()
    availability = Availability("the database", clock)
    changes: list[str | None] = []
    availability.on_change = lambda: changes.append(availability.trouble)
    with capture_logs() as logs:
        for reason in ("stopping", "stopping", "no login", "stopping", "no login"):
            availability.record_failure(Use.WRITES, StoreUnavailable(reason))
            clock.now += 0.1
    assert [log["error"] for log in logs] == ["stopping", "no login"]
    assert all(change is not None for change in changes)


def test_an_outage_that_comes_and_goes_is_logged_less_and_less_often() -> None:
    clock = Clock()
    availability = Availability("the database", clock)
    with capture_logs() as logs:
        for _ in range(200):
            availability.record_failure(Use.WRITES, StoreUnavailable("locked"))
            clock.now += 0.5
            availability.record_success(Use.WRITES)
            clock.now += 0.5
    assert len([log for log in logs if log["event"] == "the database is away"]) == 6


def test_reads_that_succeed_do_not_end_an_outage_of_writes() -> None:
    availability = Availability("the database", Clock())
    availability.record_failure(Use.WRITES, StoreUnavailable("read-only"))
    availability.record_success(Use.READS)
    assert availability.trouble is not None
    assert "refused writes" in availability.trouble
    assert "read-only" in availability.trouble
