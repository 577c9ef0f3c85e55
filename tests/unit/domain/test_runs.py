"""The states of runs and tasks, and their moves."""

from __future__ import annotations

import pytest

from triggerer.domain.runs import ACTIVE_STATES, RunState, TaskState


@pytest.mark.parametrize("state", list(RunState))
def test_a_run_has_ended_unless_it_is_queued_or_running(state: RunState) -> None:
    assert state.is_final == (state not in ACTIVE_STATES)


@pytest.mark.parametrize("state", [state for state in RunState if state.is_final])
def test_an_ended_run_can_only_be_queued_again(state: RunState) -> None:
    assert [other for other in RunState if state.may_become(other)] == [RunState.QUEUED]


def test_a_run_cannot_succeed_or_fall_silent_without_having_run() -> None:
    assert not RunState.QUEUED.may_become(RunState.SUCCESS)
    assert RunState.RUNNING.may_become(RunState.QUEUED)


@pytest.mark.parametrize("state", list(TaskState))
def test_a_task_that_has_ended_can_only_begin_again_or_be_left_out(state: TaskState) -> None:
    may = {other for other in TaskState if state.may_become(other)}
    again = {TaskState.RUNNING, TaskState.SKIPPED, TaskState.UPSTREAM_FAILED}
    assert may == (again if state.is_final else set(TaskState) - {TaskState.UPSTREAM_FAILED})
