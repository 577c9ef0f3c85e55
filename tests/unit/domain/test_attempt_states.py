"""The states of attempts and launches, as a whole table."""

from datetime import UTC, datetime
from itertools import product

import pytest

from triggerer.domain.attempt_states import ENDS, AttemptState
from triggerer.domain.attempts import RunEnd
from triggerer.domain.launches import attempt_tag, session_id_of, task_tag
from triggerer.domain.runs import RunState

INTENDED, LAUNCHING, RUNNING, UNKNOWN = (
    AttemptState.INTENDED,
    AttemptState.LAUNCHING,
    AttemptState.RUNNING,
    AttemptState.UNKNOWN,
)
_LEGAL = {
    *((INTENDED, state) for state in (LAUNCHING, RUNNING, UNKNOWN)),
    *((LAUNCHING, state) for state in (RUNNING, UNKNOWN)),
    (RUNNING, UNKNOWN),
    (UNKNOWN, RUNNING),
    *product((INTENDED, LAUNCHING, RUNNING, UNKNOWN), ENDS),
}


@pytest.mark.parametrize(("before", "after"), list(product(AttemptState, AttemptState)))
def test_an_attempt_moves_only_as_the_table_says(before: AttemptState, after: AttemptState) -> None:
    assert before.may_become(after) == ((before, after) in _LEGAL)


@pytest.mark.parametrize("state", AttemptState)
def test_an_attempt_has_ended_exactly_if_no_move_is_left(state: AttemptState) -> None:
    assert state.has_ended == (not any(map(state.may_become, AttemptState)))


@pytest.mark.parametrize("state", AttemptState)
def test_every_state_can_be_reached_and_every_open_state_can_end(state: AttemptState) -> None:
    assert state is INTENDED or any(one.may_become(state) for one in AttemptState)
    assert state.has_ended or all(map(state.may_become, ENDS))


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        (RunState.SUCCESS, None, AttemptState.SUCCESS),
        (RunState.FAILED, None, AttemptState.FAILED),
        (RunState.FAILED, 1, AttemptState.FAILED),
        (RunState.FAILED, -9, AttemptState.KILLED),
        (RunState.CANCELLED, -9, AttemptState.CANCELLED),
    ],
)
def test_the_end_of_a_run_gives_its_attempt_a_state(
    state: RunState, code: int | None, expected: AttemptState
) -> None:
    assert RunEnd(state, datetime.now(UTC), exit_code=code).attempt_state is expected


def test_a_tag_names_one_attempt_and_a_session_id_follows_from_it() -> None:
    tags = {
        attempt_tag(f"host:1:{instance}", run, attempt, epoch)
        for instance, run, attempt, epoch in product(("aaaa", "bbbb"), (1, 11), (1, 2), (1, 2, 3))
    }
    assert len(tags) == 24
    assert attempt_tag("host:1:aaaa", 7, 1, 2) == "triggerer-aaaa-7-1-2"
    assert len({session_id_of(tag) for tag in tags}) == 24
    assert session_id_of("a") == session_id_of("a")


def test_a_tasks_tag_has_only_letters_digits_and_hyphens() -> None:
    tag = task_tag("triggerer-aaaa-7-1-2", "größe, or äöü", 2)
    assert tag.startswith("triggerer-aaaa-7-1-2-")
    assert tag.endswith("-2")
    assert tag.isascii()
    assert tag.replace("-", "").isalnum()
