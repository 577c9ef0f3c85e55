"""One attempt of a run: the order that its worker executes, and the results that the worker reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import FormerLaunch
from triggerer.domain.outputs import output_token
from triggerer.domain.runs import RunState, TaskState
from triggerer.domain.text.known_fields import known_fields
from triggerer.domain.text.one_line import one_line


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class RunDetails:
    """The facts about a run that its tasks can read."""

    dag_id: str
    run_id: str
    run_type: str
    attempt: int
    """The number of the attempt, from 1. Each claim of the run by an executor is an attempt.

    A run is claimed again, for instance, if its executor died or gave the run up, if its DAG file did not load, or if a
    user retried or cleared the run.
    """
    queued_at: datetime
    run_after: datetime
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    params: Mapping[str, Any]
    partition_key: str | None


@dataclass(frozen=True, slots=True)
class Repeat:
    """Facts about a run's earlier attempts that its next attempt must know."""

    kept: Mapping[str, TaskState] = field(default_factory=dict)
    """The tasks whose results stay, with their final states. Such a task is executed again only if another task needs
    its return value."""
    cleared: Mapping[str, int] = field(default_factory=dict)
    """How often each task was cleared, by task id. A cleared task emits events for its outlets again, and its output
    gets a new token."""
    after_attempt: int = 0
    """Only attempts after this number count toward the limit on attempts whose executor died."""
    after_epoch: int = 0
    """The run's epoch when it ended last. The next attempts stop launches of this epoch and of earlier epochs."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that the column `dag_run.again` stores."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> Repeat:
        if document is None:
            return cls()
        values = known_fields(cls, document)
        values["kept"] = {task: TaskState(state) for task, state in document["kept"].items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class RunOrder(RunDetails):
    """One attempt of a run, with everything that the worker needs to execute it."""

    run_pk: int
    path: str
    """The DAG file, relative to the DAGs folder."""
    needs_spark: bool
    log_path: str
    repeat: Repeat = field(default_factory=Repeat)
    callbacks: str | None = None
    """The run states after which the DAG has callbacks, such as `success,failed`; None: no callbacks."""
    epoch: int = 0
    """Grows with each claim of the run. The store refuses reports of an older epoch."""
    tag: str = ""
    """The name of the attempt in a cluster or on a server, see `triggerer.domain.launches.attempt_tag`."""
    connect: str | None = None
    """The address of the Spark Connect server where this attempt opens a session. None: the attempt uses no server."""
    former: tuple[FormerLaunch, ...] = ()
    """Earlier attempts' launches that may still be at work. The user's code begins once these launches have ended.

    Exception: a Spark application in a cluster may continue, if the run has not ended since the application was
    submitted. The task that submitted it then waits for its end.
    """
    api_token: str = field(default="", repr=False)
    """The attempt's token for the HTTP API. Empty: no token."""

    def calls_back(self, state: RunState) -> bool:
        """True if the DAG has callbacks for this state."""
        return self.callbacks is not None and state in self.callbacks.split(",")

    def output_token(self, task_id: str) -> str:
        """Return the identity of a task's output: equal in every attempt, until somebody clears the task."""
        repetition = self.repeat.cleared.get(task_id, 0)
        return output_token(self.dag_id, self.run_id, task_id, repetition)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RunOrder:
        values = known_fields(cls, document)
        values["repeat"] = Repeat.from_json(values["repeat"])
        values["former"] = tuple(map(FormerLaunch.from_json, values["former"]))
        for name in _INSTANTS:
            values[name] = _instant(values[name])
        return cls(**values)


_INSTANTS: Final = (
    "queued_at",
    "run_after",
    "logical_date",
    "data_interval_start",
    "data_interval_end",
)


@dataclass(frozen=True, slots=True)
class CallbackOrder:
    """An order to call a DAG's callbacks after one of its runs has ended."""

    run: RunOrder
    state: RunState
    error: str | None
    calls: int
    """How often an executor has begun this call: 1, or more if an executor died during the call."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CallbackOrder:
        run = RunOrder.from_json(document["run"])
        return cls(run, RunState(document["state"]), document["error"], document["calls"])


@dataclass(frozen=True, slots=True)
class EmittedEvent:
    """An asset event that a successful task has emitted."""

    asset_name: str
    asset_uri: str
    extra: dict[str, Any]
    ordinal: int
    """The number of the event among this task's events for one asset, from 0."""
    aliases: tuple[str, ...] = ()
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task's last try, or the task's state while it runs. Only a success has `events`."""

    task_id: str
    state: TaskState
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None = None
    events: tuple[EmittedEvent, ...] = ()
    progress: TaskProgress | None = None

    def failed(self, error: str) -> TaskResult:
        """Return the result as if the task had failed with this error."""
        return dataclasses.replace(self, state=TaskState.FAILED, error=error, events=())


@dataclass(frozen=True, slots=True)
class Wait:
    """The report that an attempt has begun to wait for something, or that it waits no longer."""

    reason: str | None
    """The reason for waiting, such as a missing executor in the Spark cluster; None: the attempt waits no longer."""
    since: datetime


@dataclass(frozen=True, slots=True)
class SparkProgress:
    """How far the Spark work of a running attempt is, as Spark counts it. Short stages may be missing."""

    stages: int
    """All stages that were seen, ended or not."""
    stages_done: int
    tasks: int
    tasks_done: int
    tasks_failed: int = 0
    rows_read: int | None = None
    """The rows that were read. None: rows are not counted, as on a Spark Connect server."""
    rows_written: int | None = None
    bytes_read: int | None = None

    def __str__(self) -> str:
        parts = [
            f"stages {self.stages_done:,}/{self.stages:,}",
            f"tasks {self.tasks_done:,}/{self.tasks:,}",
        ]
        if self.tasks_failed:
            parts.append(f"{self.tasks_failed:,} tasks failed")
        for name, value in (
            ("rows read", self.rows_read),
            ("rows written", self.rows_written),
            ("bytes read", self.bytes_read),
        ):
            if value:
                parts.append(f"{value:,} {name}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage of a task's Spark work."""

    stage_id: int
    name: str
    """Spark's name of the stage, such as `count at orders.py:12`. Empty: unknown, as on a Spark Connect server."""
    started_at: datetime
    ended_at: datetime | None
    tasks: int
    tasks_done: int
    tasks_failed: int = 0
    rows_read: int | None = None
    rows_written: int | None = None
    bytes_read: int | None = None


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far the Spark work of a task's last try is, or was when the try ended."""

    total: SparkProgress
    newest_stages: tuple[StageProgress, ...]
    """The newest stages, oldest first. `total` also counts the stages before them."""

    def to_text(self) -> str:
        """Return the JSON that the column `task_run.progress` stores."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def from_text(cls, text: str) -> TaskProgress:
        document = json.loads(text)
        stages = document["newest_stages"]
        for stage in stages:
            stage |= {name: _instant(stage[name]) for name in ("started_at", "ended_at")}
        return cls(
            SparkProgress(**known_fields(SparkProgress, document["total"])),
            tuple(StageProgress(**known_fields(StageProgress, one)) for one in stages),
        )


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far the Spark work of a running attempt is, in total and for each running task."""

    total: SparkProgress
    tasks: Mapping[str, TaskProgress]
    """The progress of each running task, by task id."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    state: RunState
    ended_at: datetime
    error: str | None = None
    exit_code: int | None = None
    """The exit code of the run's process or of its worker, if one of them died. A negative code
    names the signal that killed the process: -9 is SIGKILL."""

    @property
    def attempt_state(self) -> AttemptState:
        """The state of an attempt that ended like this."""
        was_killed = self.exit_code is not None and self.exit_code < 0
        if was_killed and self.state is RunState.FAILED:
            return AttemptState.KILLED
        return AttemptState(self.state.value)

    @property
    def in_short(self) -> str | None:
        """The error in one line."""
        return one_line(self.error)
