"""When a cleaning is due, and when the clocks allow it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from triggerer.config import load_settings, written_age
from triggerer.config.sections import RetentionSettings
from triggerer.errors import ConfigurationError
from triggerer.operations.cleaning import Limits, SteadyClock, night_after

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def _machine_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone of this machine."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("_machine_in", "instant", "night"),
    [
        ("UTC", "2026-11-28T12:00Z", "2026-11-29T03:00Z"),
        ("UTC", "2026-11-28T02:59:59Z", "2026-11-28T03:00Z"),
        ("UTC", "2026-11-28T03:00Z", "2026-11-29T03:00Z"),
        ("UTC", "2026-12-31T23:00Z", "2027-01-01T03:00Z"),
        ("Asia/Karachi", "2026-11-28T22:30Z", "2026-11-29T22:00Z"),
        # The clocks in Berlin are set forward at 02:00, and set back at 03:00.
        ("Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T01:00Z"),
        ("Europe/Berlin", "2026-03-29T00:59Z", "2026-03-29T01:00Z"),
        ("Europe/Berlin", "2026-03-29T01:00Z", "2026-03-30T01:00Z"),
        ("Europe/Berlin", "2026-10-24T12:00Z", "2026-10-25T02:00Z"),
        ("Europe/Berlin", "2026-10-25T00:30Z", "2026-10-25T02:00Z"),
        ("Europe/Berlin", "2026-10-25T01:30Z", "2026-10-25T02:00Z"),
        ("Europe/Berlin", "2026-10-25T02:00Z", "2026-10-26T02:00Z"),
        # In 2026 the clocks in Athens are set forward at 03:00, so there is no 03:00, and set back at 04:00, so 03:00
        # comes twice: the first counts.
        ("Europe/Athens", "2026-03-28T12:00Z", "2026-03-29T01:00Z"),
        ("Europe/Athens", "2026-03-29T01:00Z", "2026-03-30T00:00Z"),
        ("Europe/Athens", "2026-10-24T12:00Z", "2026-10-25T00:00Z"),
        ("Europe/Athens", "2026-10-25T00:00Z", "2026-10-26T01:00Z"),
        ("Europe/Athens", "2026-10-25T00:30Z", "2026-10-26T01:00Z"),
        ("Europe/Athens", "2026-10-25T01:00Z", "2026-10-26T01:00Z"),
    ],
    indirect=["_machine_in"],
)
@pytest.mark.usefixtures("_machine_in")
def test_a_night_is_the_next_three_o_clock_of_the_machine(instant: str, night: str) -> None:
    assert night_after(datetime.fromisoformat(instant)) == datetime.fromisoformat(night)


def test_nothing_is_deleted_for_an_hour_after_the_clock_was_set() -> None:
    passed = 0.0
    now = NOON
    clock = SteadyClock(lambda: passed, lambda: now)
    assert clock.doubt(now) is None
    passed, now = 60.0, NOON + timedelta(seconds=60)
    assert clock.doubt(now) is None
    passed, now = 120.0, NOON + 365 * DAY
    assert "was set" in (clock.doubt(now) or "")
    passed, now = 120.0 + 3599, now + timedelta(seconds=3599)
    assert "was set" in (clock.doubt(now) or "")
    passed, now = passed + 1, now + timedelta(seconds=1)
    assert clock.doubt(now) is None


def test_nothing_is_deleted_while_two_clocks_differ() -> None:
    clock = SteadyClock(lambda: 0.0, lambda: NOON - timedelta(minutes=61))
    assert "differ" in (clock.doubt(NOON) or "")


def test_a_full_database_makes_newer_data_old_but_no_run_that_is_never_old() -> None:
    cut = NOON - DAY
    limits = Limits.of(RetentionSettings(), NOON)
    assert limits.events == NOON - 90 * DAY
    assert limits.parked is None
    roomy = limits.with_room(cut)
    assert (roomy.events, roomy.runs, roomy.logs) == (cut, cut, NOON - 30 * DAY)
    assert limits.with_room(NOON - 100 * DAY) == limits
    assert Limits(runs=None).with_room(cut) == Limits(events=cut)


@pytest.mark.parametrize(
    ("text", "age"),
    [("90d", 90 * DAY), ("PT12H", DAY / 2), ("PT90S", timedelta(seconds=90)), ("never", None)],
)
def test_an_age_is_read_and_written_with_its_unit(text: str, age: timedelta | None) -> None:
    settings = load_settings(environ={"TRIGGERER__RETENTION__EVENTS": text})
    assert settings.retention.events == age
    assert written_age(age) == text


@pytest.mark.parametrize("wrong", ["90", "0d", "-1d", "36501d", "forever", ""])
def test_an_age_without_a_unit_is_an_error_that_names_the_key(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"RUNS: \[retention\] runs: it must be .*\d+d"):
        load_settings(environ={"TRIGGERER__RETENTION__RUNS": wrong})
