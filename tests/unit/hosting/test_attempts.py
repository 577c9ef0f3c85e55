"""After a failure, a trigger is shown as failing until it has run 1.5 times as long as before (1 to 60 seconds)."""

from __future__ import annotations

from typing import Any

import pytest

from triggerer.hosting.attempts import Attempts
from triggerer.streams import MemberState

HEALTHY_AFTER_S = 60.0
AWAY = ConnectionError("away")


class Hosted:
    """The part of a hosted trigger that its attempts use."""

    def __init__(self) -> None:
        self.state = MemberState.WAITING
        self.error: BaseException | None = None
        self.attempts = Attempts(HEALTHY_AFTER_S)

    def enter(self, state: MemberState, now: float) -> None:
        self.state = state
        self.error = AWAY if state is MemberState.FAILING else None
        itself: Any = self
        self.attempts.record(itself, now)

    def error_at(self, now: float) -> BaseException | None:
        itself: Any = self
        self.attempts.take_working(now)
        return self.attempts.error_before(itself)


@pytest.fixture
def hosted() -> Hosted:
    return Hosted()


def test_one_that_has_never_failed_works(hosted: Hosted) -> None:
    hosted.enter(MemberState.RUNNING, 0)
    assert hosted.error_at(0) is None
    assert hosted.attempts.next_at() is None


def test_one_that_fails_late_at_each_attempt_is_failing_throughout(hosted: Hosted) -> None:
    now = 0.0
    for _ in range(5):
        hosted.enter(MemberState.RUNNING, now)
        now += 30
        hosted.enter(MemberState.FAILING, now)
        now += 2
        hosted.enter(MemberState.RUNNING, now)
        assert hosted.error_at(now + 30) is AWAY
    assert hosted.attempts.next_at() == now + 45
    assert hosted.error_at(now + 45) is None


def test_one_that_failed_soon_works_soon(hosted: Hosted) -> None:
    hosted.enter(MemberState.RUNNING, 0)
    hosted.enter(MemberState.FAILING, 0.1)
    hosted.enter(MemberState.RUNNING, 5)
    # Other changes of the run begin no new attempt.
    hosted.enter(MemberState.RUNNING, 5.9)
    assert hosted.error_at(5.9) is AWAY
    assert hosted.error_at(6) is None


def test_one_that_had_worked_before_it_failed_works_soon(hosted: Hosted) -> None:
    hosted.enter(MemberState.RUNNING, 0)
    hosted.enter(MemberState.FAILING, HEALTHY_AFTER_S)
    hosted.enter(MemberState.RUNNING, 70)
    assert hosted.attempts.next_at() == 71


def test_no_attempt_has_to_go_on_for_longer_than_what_counts_as_healthy(hosted: Hosted) -> None:
    hosted.enter(MemberState.RUNNING, 0)
    hosted.enter(MemberState.FAILING, 50)
    hosted.enter(MemberState.RUNNING, 60)
    assert hosted.attempts.next_at() == 60 + HEALTHY_AFTER_S


def test_an_attempt_at_which_it_cannot_be_made_makes_the_next_no_shorter(hosted: Hosted) -> None:
    hosted.enter(MemberState.RUNNING, 0)
    hosted.enter(MemberState.FAILING, 30)
    hosted.enter(MemberState.FAILING, 32)
    hosted.enter(MemberState.RUNNING, 34)
    assert hosted.attempts.next_at() == 34 + 45


def test_one_that_returned_or_was_stopped_is_forgotten(hosted: Hosted) -> None:
    hosted.enter(MemberState.FAILING, 0)
    hosted.enter(MemberState.WAITING, 1)
    hosted.enter(MemberState.RUNNING, 2)
    assert hosted.error_at(2) is None
