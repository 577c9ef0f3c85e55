"""The progress of a run's Spark work, as Spark counts it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from triggerer.domain.attempts import SparkProgress, StageProgress, TaskProgress
from triggerer.worker.parallel.threads import own_task
from triggerer.worker.spark.progress import ProgressWatch
from triggerer.worker.spark.stages import MOST_STAGES, Stages


def option(second: int | None) -> Any:
    date = SimpleNamespace(getTime=lambda: (second or 0) * 1000)
    return SimpleNamespace(isDefined=lambda: second is not None, get=lambda: date)


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


class FakeStage:
    def __init__(
        self, tasks: int, done: int, rows: int, *, ended: int | None = None, pool: str = "default"
    ) -> None:
        self.name = lambda: "count at NativeMethodAccessorImpl.java:0"
        self.submissionTime = lambda: option(100)
        self.completionTime = lambda: option(ended)
        self.schedulingPool = lambda: pool
        self.numTasks = lambda: tasks
        self.numCompleteTasks = lambda: done
        self.numFailedTasks = lambda: 0
        self.inputRecords = lambda: rows
        self.outputRecords = lambda: 0
        self.inputBytes = lambda: 8 * rows


class FakeSession:
    """A classic session whose stages a test changes."""

    def __init__(self) -> None:
        self.stages: dict[int, FakeStage] = {}
        self.active: list[int] = []
        store = SimpleNamespace(lastStageAttempt=lambda stage: self.stages[stage])
        scala = SimpleNamespace(statusStore=lambda: store)
        self.sparkContext: Any = SimpleNamespace(
            statusTracker=lambda: SimpleNamespace(getActiveStageIds=lambda: self.active),
            _jsc=SimpleNamespace(sc=lambda: scala),
        )


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def watch(session: FakeSession) -> Any:
    """A watch that looks when the test calls `_read_stages`."""
    watch = ProgressWatch(lambda _: None, every_s=3600)
    watch.follow(session)  # type: ignore[arg-type]
    yield watch
    watch.stop()


def test_stages_add_up_and_a_stage_that_is_no_longer_active_is_read_once_more(
    session: FakeSession, watch: ProgressWatch
) -> None:
    assert watch.progress() is None
    session.stages, session.active = {3: FakeStage(10, 4, 100)}, [3]
    watch._read_stages()  # noqa: SLF001
    progress = watch.progress()
    assert progress is not None
    assert progress.total == SparkProgress(1, 0, 10, 4, 0, 100, 0, 800)
    session.stages, session.active = {3: FakeStage(10, 10, 250), 4: FakeStage(2, 1, 0)}, [4]
    watch._read_stages()  # noqa: SLF001
    progress = watch.progress()
    assert progress is not None
    assert progress.total == SparkProgress(2, 1, 12, 11, 0, 250, 0, 2000)
    assert str(progress.total) == "stages 1/2, tasks 11/12, 250 rows read, 2,000 bytes read"


def test_a_task_has_the_stages_that_were_first_seen_in_its_last_try(
    session: FakeSession, watch: ProgressWatch
) -> None:
    session.stages, session.active = {1: FakeStage(1, 0, 0)}, [1]
    watch.begin_task("a")
    watch._read_stages()  # noqa: SLF001
    watch.begin_task("a")  # the second try
    session.stages[2], session.active = FakeStage(4, 1, 10), [1, 2]
    watch._read_stages()  # noqa: SLF001
    progress = watch.progress()
    assert progress is not None
    assert [stage.stage_id for stage in progress.tasks["a"].newest_stages] == [2]
    # `ProgressWatch` reads Spark's stages once a second. When a task succeeds, the watch reads them once more.
    session.stages[2], session.active = FakeStage(4, 4, 40, ended=103), []
    assert watch.end_task("a", has_succeeded=True) == TaskProgress(
        SparkProgress(1, 1, 4, 4, 0, 40, 0, 320),
        (StageProgress(2, "count", at(100), at(103), 4, 4, 0, 40, 0, 320),),
    )
    watch.begin_task("b")
    assert watch.end_task("b", has_succeeded=True) is None


def test_the_end_of_a_failed_task_does_not_ask_spark(
    session: FakeSession, watch: ProgressWatch
) -> None:
    watch.begin_task("a")
    session.stages, session.active = {1: FakeStage(3, 1, 0)}, [1]
    watch._read_stages()  # noqa: SLF001
    session.stages = {}
    ended = watch.end_task("a", has_succeeded=False)
    assert ended is not None
    assert ended.total.tasks_done == 1


def test_tasks_side_by_side_are_told_apart_by_their_pools(
    session: FakeSession, watch: ProgressWatch
) -> None:
    for task_id in ("a", "b"):
        token = own_task.set(task_id)
        watch.begin_task(task_id)
        own_task.reset(token)
    session.stages = {1: FakeStage(1, 0, 0, pool="b"), 2: FakeStage(1, 0, 0, pool="users")}
    session.active = [1, 2]
    watch._read_stages()  # noqa: SLF001
    progress = watch.progress()
    assert progress is not None
    assert progress.total.stages == 2
    assert {task: one.total.stages for task, one in progress.tasks.items()} == {"b": 1}


def test_over_connect_the_server_tells_the_stages_of_each_operation_and_no_rows() -> None:
    watch = ProgressWatch(lambda _: None)
    watch.begin_task("a")
    stage = SimpleNamespace(
        stage_id=0, num_tasks=4, num_completed_tasks=3, num_bytes_read=7, done=False
    )
    watch._on_connect([stage], 1, "one", False)  # noqa: SLF001
    watch._on_connect([stage], 1, "two", True)  # noqa: SLF001
    progress = watch.progress()
    assert progress is not None
    assert progress.total == SparkProgress(2, 1, 8, 6, 0, None, None, 14)
    assert progress.tasks["a"].total == progress.total


def test_of_many_stages_the_newest_are_kept_and_all_are_counted() -> None:
    stages = Stages()
    for number in range(3 * MOST_STAGES):
        stages.put(number, StageProgress(number, "", at(number), at(number), 2, 2, rows_read=1))
    stages.put("late", StageProgress(999, "", at(0), None, 2, 1, rows_read=1))
    progress = stages.progress()
    assert progress is not None
    assert progress.total == SparkProgress(61, 60, 122, 121, 0, 61, None, None)
    assert len(progress.newest_stages) == MOST_STAGES
    assert [stage.stage_id for stage in stages.active] == [999]


def test_the_progress_of_a_task_is_stored_as_text() -> None:
    stage = StageProgress(1, "count at a.py:1", at(1), None, 4, 1, 0, 5, 6, 7)
    progress = TaskProgress(SparkProgress(1, 0, 4, 1, 0, 5, 6, 7), (stage,))
    assert TaskProgress.from_text(progress.to_text()) == progress
