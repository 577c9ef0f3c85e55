"""Tasks of a run side by side: their order, their limit, their time, and their output."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from triggerer.domain.attempts import TaskResult
from triggerer.domain.dags import DAG
from triggerer.domain.runs import TaskState
from triggerer.domain.tasks import Task, task
from triggerer.worker.failures import ProcessStopped, TaskTimeout
from triggerer.worker.parallel.side_by_side import execute_side_by_side
from triggerer.worker.parallel.threads import thread_time_limit
from triggerer.worker.task_outcomes import TaskOutcomes
from triggerer.worker.tasks import Finished

Execute = Callable[[Task, Mapping[str, Any]], Finished]


@task
def a() -> int:
    return 1


@task
def b() -> int:
    return 2


@task
def both(x: int, y: int) -> int:
    return x + y


def finished(one: Task, state: TaskState = TaskState.SUCCESS, value: Any = None) -> Finished:
    now = datetime.now(UTC)
    return Finished(TaskResult(one.task_id, state, 1, now, now, error="it failed"), value)


def run(dag: DAG, execute: Execute, limit: int = 2) -> TaskOutcomes:
    outcomes = TaskOutcomes()
    execute_side_by_side(
        dag.tasks_in_order(), {}, outcomes, limit=limit, execute=execute, report=lambda: None
    )
    return outcomes


def make_dag() -> DAG:
    with DAG("d", max_parallel_tasks=2) as dag:
        both(a(), b())
    return dag


def test_independent_tasks_work_at_once_and_others_wait_for_their_results() -> None:
    together = threading.Barrier(2, timeout=10)
    order: list[str] = []

    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        if one.task_id != "both":
            together.wait()
        order.append(one.task_id)
        return finished(one, value=one.call(context={}, results=values))

    outcomes = run(make_dag(), execute)
    assert outcomes.values == {"a": 1, "b": 2, "both": 3}
    assert order[-1] == "both"


def test_no_more_tasks_work_at_once_than_the_limit_allows() -> None:
    with DAG("d") as dag:
        for _ in range(6):
            a()
    now, most = [0], [0]
    lock = threading.Lock()

    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return finished(one)

    run(dag, execute, limit=3)
    assert 1 < most[0] <= 3


def test_tasks_of_one_pool_take_turns() -> None:
    with DAG("d") as dag:
        for _ in range(4):
            a.override(pool="db")()
    alone = threading.Lock()

    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        assert alone.acquire(blocking=False)
        time.sleep(0.005)
        alone.release()
        return finished(one)

    assert len(run(dag, execute, limit=4).values) == 4


def test_a_failed_task_leaves_out_those_that_wait_for_it_and_no_others() -> None:
    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        return finished(one, TaskState.FAILED if one.task_id == "a" else TaskState.SUCCESS)

    outcomes = run(make_dag(), execute)
    states = {one.task_id: one.state for one in outcomes.unreported}
    assert states == {
        "a": TaskState.FAILED,
        "b": TaskState.SUCCESS,
        "both": TaskState.UPSTREAM_FAILED,
    }
    assert outcomes.failures == ["task a failed: it failed"]


def test_a_stop_reaches_the_finally_blocks_of_all_tasks() -> None:
    cleaned: list[str] = []
    begun = threading.Barrier(2, timeout=10)

    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        try:
            if begun.wait() == 0:
                raise ProcessStopped
            while True:
                time.sleep(0.005)
        finally:
            cleaned.append(one.task_id)

    with pytest.raises(ProcessStopped):
        run(make_dag(), execute)
    assert sorted(cleaned) == ["a", "b"]


def test_an_unexpected_error_reaches_the_finally_blocks_of_the_other_tasks_before_it_is_raised() -> (
    None
):
    cleaned, is_over = threading.Event(), threading.Event()
    begun = threading.Barrier(2, timeout=10)

    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        if begun.wait() == 0:
            raise RuntimeError("no thread")
        try:
            while not is_over.wait(0.005):
                pass
        finally:
            cleaned.set()
        return finished(one)

    with pytest.raises(RuntimeError, match="no thread"):
        run(make_dag(), execute)
    was_cleaned = cleaned.is_set()
    is_over.set()
    assert was_cleaned


def test_the_time_limit_of_a_thread_ends_it_and_its_work() -> None:
    ended, outcome = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            with thread_time_limit(timedelta(seconds=0.05), ended.set):
                # Stands for a call into Java, which only the end of its work interrupts.
                ended.wait(10)
                time.sleep(0)
        except TaskTimeout as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert [str(one) for one in outcome] == ["the task did not end within 0:00:00.050000"]


def test_a_time_limit_that_is_not_reached_changes_nothing() -> None:
    with thread_time_limit(timedelta(seconds=0.02), lambda: None):
        pass
    time.sleep(0.05)
    with thread_time_limit(None, lambda: None):
        pass


def test_a_time_limit_that_expires_in_the_last_call_is_a_timeout_of_this_task_only() -> None:
    with (
        pytest.raises(TaskTimeout, match=r"did not end within 0:00:00\.010000"),
        thread_time_limit(timedelta(seconds=0.01), lambda: None),
    ):
        time.sleep(0.2)
    # If the ended limit still raised an exception, it would arrive in one of these turns.
    for _ in range(10_000):
        pass


TRACED_AFTER_A_LIMIT = """
import sys
from datetime import timedelta
from triggerer.worker.parallel.threads import thread_time_limit

with thread_time_limit(timedelta(seconds=60), lambda: None):
    pass

def traced():
    return 1

sys.settrace(lambda *_: None)
traced()
"""


def test_functions_can_be_traced_after_a_time_limit_that_was_not_reached() -> None:
    """In an earlier version, traced functions hung in Python 3.11, because the time limit withdrew an exception."""
    subprocess.run([sys.executable, "-c", TRACED_AFTER_A_LIMIT], check=True, timeout=60)


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_line_of_a_task_is_written_even_without_a_line_break(
    fails: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        print(f"line of {one.task_id}\nend of {one.task_id}", end="")
        sys.stderr.write(f"complaint of {one.task_id}")
        if fails:
            raise ProcessStopped
        return finished(one)

    with DAG("d", max_parallel_tasks=2) as dag:
        a()
    if fails:
        with pytest.raises(ProcessStopped):
            run(dag, execute)
    else:
        run(dag, execute)
    out, err = capsys.readouterr()
    assert out == "[a] line of a\n[a] end of a\n"
    assert err == "[a] complaint of a\n"


def test_lines_of_tasks_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def execute(one: Task, values: Mapping[str, Any]) -> Finished:
        print("one", end=" ")
        print("line of", one.task_id)
        return finished(one, value=0)

    before = sys.stdout
    run(make_dag(), execute)
    assert sys.stdout is before
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[a] one line of a",
        "[b] one line of b",
        "[both] one line of both",
    ]
