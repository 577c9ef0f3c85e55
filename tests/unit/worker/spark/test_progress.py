"""The progress of a run's Spark work, as Spark counts it."""

from types import SimpleNamespace
from typing import Any

from triggerer.domain.attempts import Progress
from triggerer.worker.spark.progress import ProgressWatch


class FakeStage:
    def __init__(self, tasks: int, done: int, rows: int) -> None:
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


def test_stages_add_up_and_a_stage_that_is_no_longer_active_is_read_once_more() -> None:
    session, watch = FakeSession(), ProgressWatch(lambda _: None, every_s=3600)
    watch.follow(session)  # type: ignore[arg-type]
    assert watch.progress() is None
    session.stages, session.active = {3: FakeStage(10, 4, 100)}, [3]
    watch._look()  # noqa: SLF001
    assert watch.progress() == Progress(1, 0, 10, 4, 0, 100, 0, 800)
    session.stages, session.active = {3: FakeStage(10, 10, 250), 4: FakeStage(2, 1, 0)}, [4]
    watch._look()  # noqa: SLF001
    progress = watch.progress()
    watch.stop()
    assert progress == Progress(2, 1, 12, 11, 0, 250, 0, 2000)
    assert str(progress) == "stages 1/2, tasks 11/12, 250 rows read, 2,000 bytes read"


def test_over_connect_the_server_tells_the_stages_of_each_operation_and_no_rows() -> None:
    watch = ProgressWatch(lambda _: None)
    stage = SimpleNamespace(
        stage_id=0, num_tasks=4, num_completed_tasks=3, num_bytes_read=7, done=False
    )
    watch._on_connect([stage], 1, "one", False)  # noqa: SLF001
    watch._on_connect([stage], 1, "two", True)  # noqa: SLF001
    assert watch.progress() == Progress(2, 1, 8, 6, 0, None, None, 14)
