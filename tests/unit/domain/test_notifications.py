"""Some occurrences get a message at once, and others wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from triggerer.domain.notifications import (
    MOST_SINGLE,
    QUIET,
    Event,
    LastNotification,
    Occurrence,
    decide,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def failing(*subjects: object) -> list[Occurrence]:
    return [
        Occurrence(Event.WATCHER_FAILING, str(one), f"orders/{one}", NOW - QUIET)
        for one in subjects
    ]


def told(
    *subjects: object, ago: timedelta, is_single: bool = True
) -> dict[tuple[str, str], LastNotification]:
    key = Event.WATCHER_FAILING.value
    return {(key, str(one)): LastNotification(NOW - ago, is_single) for one in subjects}


def test_a_few_occurrences_are_messages_of_their_own() -> None:
    found = failing(1, 2)
    decision = decide(found, {}, None, NOW)
    assert (decision.single, decision.digest) == (found, ())


def test_an_object_gets_no_second_message_within_ten_minutes() -> None:
    found = failing(1)
    assert not decide(found, told(1, ago=QUIET - SECOND), None, NOW).single
    assert decide(found, told(1, ago=QUIET), None, NOW).single == found


def test_a_message_about_one_object_delays_no_other_object() -> None:
    found = failing(1, 2)
    assert decide(found, told(1, ago=SECOND), None, NOW).single == found[1:]


def test_events_of_one_object_are_counted_apart() -> None:
    parked = Occurrence(Event.PARKED, "1", "orders/1", NOW)
    assert decide([parked], told(1, ago=SECOND), None, NOW).single == [parked]


def test_many_occurrences_are_one_digest() -> None:
    found = failing(*range(MOST_SINGLE + 1))
    decision = decide(found, {}, None, NOW)
    assert (decision.single, decision.digest) == ((), found)


def test_occurrences_beyond_the_limit_of_single_messages_are_in_a_digest() -> None:
    found = failing("new")
    recent = told(*range(MOST_SINGLE), ago=QUIET - SECOND)
    assert decide(found, recent, None, NOW).digest == found
    assert decide(found, told(*range(MOST_SINGLE), ago=QUIET), None, NOW).single == found


def test_further_occurrences_wait_for_the_next_digest() -> None:
    found = failing(*range(MOST_SINGLE + 1))
    waiting = decide(found, {}, NOW - QUIET + SECOND, NOW)
    assert (waiting.single, waiting.digest) == ((), ())
    assert decide(found, {}, NOW - QUIET, NOW).digest == found


def test_the_objects_of_a_digest_use_up_no_single_messages() -> None:
    found = failing("new")
    recent = told(*range(100), ago=SECOND, is_single=False)
    assert decide(found, recent, NOW - SECOND, NOW).single == found
