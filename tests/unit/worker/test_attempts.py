"""Reports of an attempt about its tasks."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.run_orders import order
from triggerer.domain.attempts import StageProgress
from triggerer.domain.runs import TaskState
from triggerer.worker.attempt import FileStates, WorkerContext, execute_run
from triggerer.worker.protocol import RunReport, TaskStart
from triggerer.worker.spark.sessions.run_session import RunSession

LATE = """
import signal
from datetime import timedelta
from triggerer import DAG, task

with DAG("d"):
    @task(timeout=timedelta(hours=1), retries=1, retry_delay=timedelta(0))
    def late(spark):
        # The alarm of the timeout.
        signal.raise_signal(signal.SIGALRM)
    late()
"""


class FakeSession(RunSession):
    """Spark has one active stage more in each try."""

    stages = 0

    def get(self) -> Any:
        self.stages += 1
        stage = StageProgress(self.stages, "count", datetime.now(UTC), None, 10, 4)
        self._progress._put(self.stages, stage, "late")  # noqa: SLF001


def test_a_task_that_timed_out_has_the_progress_of_its_last_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triggerer.worker.attempt.RunSession", FakeSession)
    (tmp_path / "d.py").write_text(LATE)
    holder: Any = SimpleNamespace(
        begin_run=lambda launches: None,
        end_run=lambda: None,
        interrupt=lambda: True,
        how_driver_ended=lambda error: None,
        why_waiting=lambda: None,
    )
    starts: list[TaskStart] = []
    reports: list[RunReport] = []
    worker = WorkerContext(
        dags_folder=tmp_path,
        home=tmp_path,
        file_patience_s=0,
        holds_broken=False,
        file_states=FileStates(lambda path, **state: None),
        query=lambda run_pk, what, **fields: None,
        spark=holder,
        output_into=lambda path: nullcontext(),
        on_start=lambda run_pk, start: starts.append(start),
        on_wait=lambda run_pk, wait: None,
        on_progress=lambda run_pk, progress: None,
        on_launch=lambda run_pk, launch: None,
        report=lambda run_pk, report: reports.append(report),
    )
    execute_run(order(1), worker)
    (task,) = [task for report in reports for task in report.tasks]
    assert (task.state, task.try_number) == (TaskState.FAILED, 2)
    assert task.progress is not None
    assert [stage.stage_id for stage in task.progress.newest_stages] == [2]
    # After each failed try, a start without a timeout ends the timeout of the try.
    assert [(one.try_number, one.timeout_s) for one in starts] == [
        (1, 3600),
        (1, None),
        (2, 3600),
        (2, None),
    ]
