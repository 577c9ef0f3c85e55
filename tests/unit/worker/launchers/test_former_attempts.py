"""Former attempts are found, stopped and confirmed to be gone, or the new attempt does not begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fake_launcher import Place
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import Wait
from triggerer.domain.launches import FormerLaunch, Launch
from triggerer.errors import ConfigurationError
from triggerer.worker.launchers import Absent, Ended, Handle, Running, Unknown
from triggerer.worker.launchers import former_attempts as module
from triggerer.worker.launchers.former_attempts import FormerAttempts, StillUnknown, patience_for

NONE = timedelta(0)


class Told:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[Launch] = []
        self.waits: list[Wait] = []
        monkeypatch.setattr(module.time, "sleep", lambda seconds: None)

    def attempts(self, place: Place, patience: timedelta = NONE) -> FormerAttempts:
        return FormerAttempts(
            lambda name: place,
            on_launch=self.launches.append,
            on_wait=self.waits.append,
            patience=patience,
        )

    @property
    def states(self) -> list[AttemptState]:
        return [one.state for one in self.launches]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def launch(**values: Any) -> FormerLaunch:
    given: dict[str, Any] = {"task_id": None, "place": "there", **values}
    return FormerLaunch("tag", "place", 1, AttemptState.UNKNOWN, **given)


HANDLE = Handle("tag", "app-1", "http://there")


def test_a_launch_that_is_absent_is_lost_and_nothing_is_stopped(told: Told) -> None:
    place = Place(Absent())
    assert told.attempts(place).end_all([launch()]) == []
    assert (told.states, place.asked) == ([AttemptState.LOST], ["find"])


def test_a_launch_that_has_ended_keeps_its_own_end(told: Told) -> None:
    place = Place(Ended(HANDLE, AttemptState.SUCCESS))
    told.attempts(place).end_all([launch()])
    (one,) = told.launches
    assert (one.state, one.external_id, one.link) == ("success", "app-1", "http://there")


def test_a_launch_that_runs_is_stopped_under_the_id_that_was_found(told: Told) -> None:
    place = Place(Running(HANDLE), Ended(HANDLE, AttemptState.KILLED, "two operations stopped"))
    told.attempts(place).end_all([launch()])
    assert place.asked == ["find", "stop app-1"]
    assert [(one.state, one.reason) for one in told.launches] == [
        ("killed", "two operations stopped")
    ]


def test_a_stop_that_was_accepted_is_no_end_until_it_is_confirmed(told: Told) -> None:
    place = Place(Running(HANDLE), Running(HANDLE), Running(HANDLE), Running(HANDLE), Absent())
    told.attempts(place, timedelta(seconds=60)).end_all([launch()])
    assert place.asked == ["find", "stop app-1", "find", "stop app-1", "find"]
    assert told.states == [AttemptState.LOST]
    assert [wait.reason is None for wait in told.waits] == [False, False, True]


def test_a_place_that_does_not_answer_blocks_the_next_attempt(told: Told) -> None:
    place = Place(Unknown("the server does not answer"))
    with pytest.raises(StillUnknown) as raised:
        told.attempts(place).end_all([launch()])
    assert str(raised.value) == (
        "the end of attempt 1, which may still work: the server does not answer"
    )
    assert told.states == [AttemptState.UNKNOWN]
    assert "stop" not in " ".join(place.asked)


def test_a_place_that_answers_late_is_waited_for(told: Told) -> None:
    away = Unknown("the server does not answer")
    place = Place(away, away, Absent())
    told.attempts(place, timedelta(seconds=60)).end_all([launch()])
    assert told.states == [AttemptState.LOST]
    assert [wait.reason for wait in told.waits] == [
        "the end of attempt 1, which may still work: it is being stopped",
        "the end of attempt 1, which may still work: the server does not answer",
        None,
    ]


def test_a_place_that_has_been_silent_for_long_gets_only_a_short_look() -> None:
    now, minute = datetime.now(UTC), timedelta(seconds=60)
    silent = launch(unknown_since=now - timedelta(hours=1))
    assert patience_for(silent, minute, now) < timedelta(seconds=5)
    assert patience_for(launch(unknown_since=now - minute / 2), minute, now) == minute
    assert patience_for(launch(), minute, now) == minute


def test_a_launch_at_another_address_is_not_looked_for_here(told: Told) -> None:
    place = Place(Absent())
    with pytest.raises(
        StillUnknown, match=r"it was launched on elsewhere, and \[spark\] has there"
    ):
        told.attempts(place).end_all([launch(place="elsewhere")])
    assert place.asked == []


def test_a_launch_whose_launcher_is_gone_from_the_settings_is_unknown(told: Told) -> None:
    def find(name: str) -> Place:
        raise ConfigurationError("there is no launcher")

    attempts = FormerAttempts(
        find, on_launch=told.launches.append, on_wait=told.waits.append, patience=NONE
    )
    with pytest.raises(StillUnknown, match="there is no launcher"):
        attempts.end_all([launch()])


@pytest.mark.parametrize("broken", ["find", "stop"])
def test_a_launch_whose_launcher_is_broken_is_unknown(
    told: Told, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object) -> None:
        raise IndexError("list index out of range")

    place = Place(Running(HANDLE))
    monkeypatch.setattr(place, broken, fail)
    with pytest.raises(StillUnknown, match=r"the launcher place failed: IndexError\('list index"):
        told.attempts(place).end_all([launch()])
    assert told.states == [AttemptState.UNKNOWN]


@pytest.mark.parametrize(
    ("can_reattach", "asked"), [(True, ["find"]), (False, ["find", "stop app-1"])]
)
def test_only_a_launch_that_can_be_followed_is_left_alone(
    told: Told, can_reattach: bool, asked: list[str]
) -> None:
    place = Place(Running(HANDLE), Ended(HANDLE, AttemptState.KILLED), can_reattach=can_reattach)
    former = launch(task_id="t", may_continue=True)
    kept = told.attempts(place).end_all([former], may_reattach=True)
    assert [one.task_id for one in kept] == (["t"] if can_reattach else [])
    assert place.asked == asked
