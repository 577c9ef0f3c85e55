"""What a worker tells its executor, and that a task which ends at once wakes it once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from triggerer.domain.attempts import RunEnd, TaskResult
from triggerer.domain.runs import RunState, TaskState
from triggerer.execution.protocol import RunReport, TaskStart
from triggerer.execution.reporter import Reporter
from triggerer.ipc import ChildChannel

NOW = datetime(2026, 11, 27, tzinfo=UTC)


class Executor:
    """What it has been told so far."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel

    def heard(self) -> list[str]:
        frames: list[Any] = []
        while self._channel.has_more(within_s=0):
            frames.append(self._channel.receive())
        return [
            f"{one['type']} {one['start']['task_id']}" if "start" in one else one["type"]
            for one in frames
        ]


@pytest.fixture
def sides() -> Iterator[tuple[Reporter, Executor]]:
    ours, theirs = socket.socketpair()
    with ChildChannel(ours) as executor, ChildChannel(theirs) as worker:
        yield Reporter(worker), Executor(executor)


def start(task_id: str) -> TaskStart:
    return TaskStart(task_id, 1, NOW, None)


def ended(task_id: str, *, run: bool = False) -> RunReport:
    task = TaskResult(task_id, TaskState.SUCCESS, 1, NOW, NOW)
    return RunReport((task,), RunEnd(RunState.SUCCESS, NOW, None) if run else None)


def test_the_start_of_a_task_that_ends_at_once_is_not_told(
    sides: tuple[Reporter, Executor],
) -> None:
    reporter, executor = sides
    reporter.hold_starts()
    reporter.started(1, start("quick"))
    assert executor.heard() == []
    reporter.report(1, ended("quick", run=True))
    reporter.tell_starts()
    assert executor.heard() == ["results"]


def test_the_start_of_a_task_that_takes_longer_is_told(sides: tuple[Reporter, Executor]) -> None:
    reporter, executor = sides
    reporter.hold_starts()
    reporter.started(1, start("quick"))
    reporter.report(1, ended("quick"))
    reporter.started(1, start("slow"))
    assert executor.heard() == ["results"]
    reporter.tell_starts()
    assert executor.heard() == ["started slow"]
    reporter.tell_starts()
    assert executor.heard() == []


def test_starts_are_told_at_once_after_the_first_moment_of_a_run(
    sides: tuple[Reporter, Executor],
) -> None:
    reporter, executor = sides
    reporter.hold_starts()
    reporter.tell_starts()  # while the file is loaded, say
    reporter.started(1, start("one"))
    assert executor.heard() == ["started one"]
    reporter.report(1, ended("one", run=True))
    reporter.hold_starts()
    reporter.started(2, start("two"))
    assert executor.heard() == ["results"]


def test_what_was_held_back_of_a_run_that_was_cut_short_is_not_told_of_the_next(
    sides: tuple[Reporter, Executor],
) -> None:
    reporter, executor = sides
    reporter.hold_starts()
    reporter.started(1, start("cut short"))
    reporter.hold_starts()
    reporter.tell_starts()
    assert executor.heard() == []
