"""What happens between two tries of a task."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triggerer.domain.dags import DAG
from triggerer.domain.runs import TaskState
from triggerer.domain.tasks import task
from triggerer.errors import RunFailed
from triggerer.worker.tasks import Finished, TaskRunner


def _execute(
    function: Callable[[], Any],
    await_end: Callable[[], None],
    retries: int,
    timeout: timedelta | None = None,
) -> Finished:
    with DAG("d") as dag:
        task(retries=retries, timeout=timeout)(function)()
    (one,) = dag.tasks_in_order()
    run = SimpleNamespace(partition_key=None, queued_at=datetime.now(UTC))
    context: Any = SimpleNamespace(dag_run=run, arguments=lambda task, outlet_events: {})
    runner = TaskRunner(
        context,
        Path(),
        on_start=lambda start: None,
        on_failed_try=lambda start: None,
        cancel_work=lambda task_id: None,
        on_abandoned=lambda: None,
        await_end=await_end,
        find_cause=lambda error: None,
    )
    return runner.execute(one, {})


def test_the_end_of_a_failed_try_is_awaited_before_the_next_and_not_after_the_last() -> None:
    seen: list[str] = []

    def fails() -> None:
        seen.append("try")
        raise ValueError("no luck")

    done = _execute(fails, lambda: seen.append("end"), retries=2)
    assert seen == ["try", "end", "try", "end", "try"]
    assert (done.result.state, done.result.try_number) == (TaskState.FAILED, 3)


def test_a_task_whose_work_may_go_on_fails_and_says_both_reasons() -> None:
    def fails() -> None:
        raise ValueError("no luck")

    def unknown() -> None:
        raise RunFailed("the work does not end")

    done = _execute(fails, unknown, retries=2)
    assert (done.result.state, done.result.try_number) == (TaskState.FAILED, 1)
    why = "the work does not end, so the task is not tried again.\n\n"
    assert (done.result.error or "").startswith(why)
    assert "no luck" in (done.result.error or "")


def test_a_task_that_timed_out_fails_only_after_its_work_has_ended() -> None:
    seen: list[str] = []

    def hangs() -> None:
        seen.append("try")
        signal.pause()

    def await_end() -> None:
        seen.append("end")

    done = _execute(hangs, await_end, retries=1, timeout=timedelta(milliseconds=20))
    assert seen == ["try", "end", "try", "end"]
    assert "the task did not end within" in (done.result.error or "")


def test_a_task_that_timed_out_says_that_its_work_may_go_on() -> None:
    def unknown() -> None:
        raise RunFailed("the work does not end")

    done = _execute(signal.pause, unknown, retries=0, timeout=timedelta(milliseconds=20))
    assert (done.result.error or "").startswith("the work does not end.\n\n")
    assert "the task did not end within" in (done.result.error or "")
