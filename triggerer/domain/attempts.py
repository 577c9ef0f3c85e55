"""One attempt of a run: what a worker is given to execute, and what comes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from triggerer.domain.runs import RunState, TaskState


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class RunDetails:
    """What the tasks of a run can read of it."""

    dag_id: str
    run_id: str
    run_type: str
    attempt: int
    """1, unless an executor died while it ran this run, or somebody has had it repeated."""
    queued_at: datetime
    run_after: datetime
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    params: Mapping[str, Any]
    partition_key: str | None


@dataclass(frozen=True, slots=True)
class Repeat:
    """What an attempt leaves as it is, since somebody has had an ended run repeated in part."""

    kept: Mapping[str, TaskState] = field(default_factory=dict)
    """By task id, how it ended. A kept task is executed only if another one needs what it returned."""
    cleared: Mapping[str, int] = field(default_factory=dict)
    """By task id, how often it was cleared: each time its outlets' events are new ones."""
    after_attempt: int = 0
    """The run's attempts until then; they do not count for how often its executors have died."""

    def to_json(self) -> dict[str, Any]:
        """Return the form that `dag_run.again` holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> Repeat:
        if document is None:
            return cls()
        kept = {task_id: TaskState(state) for task_id, state in document["kept"].items()}
        return cls(kept, document["cleared"], document["after_attempt"])


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
    """The ends after which the DAG wants to be called, of `success,failed`; None: none."""

    def calls_back(self, state: RunState) -> bool:
        """Whether the DAG wants to be called after such an end."""
        return self.callbacks is not None and state in self.callbacks.split(",")

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RunOrder:
        values = dict(document)
        values["repeat"] = Repeat.from_json(values["repeat"])
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
    """A DAG is to be called, since one of its runs has ended."""

    run: RunOrder
    state: RunState
    error: str | None
    calls: int
    """1, unless an executor died while it called."""

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
    """Counts this task's events of one asset, from 0: another attempt has the same numbers."""
    aliases: tuple[str, ...] = ()
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The last try of a task: it runs, or has ended. `events` is empty unless it succeeded."""

    task_id: str
    state: TaskState
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None = None
    events: tuple[EmittedEvent, ...] = ()

    def failed(self, error: str) -> TaskResult:
        """Return the result as if the task had failed with this error."""
        return dataclasses.replace(self, state=TaskState.FAILED, error=error, events=())


@dataclass(frozen=True, slots=True)
class Wait:
    """A run that is being executed waits, or does not any more."""

    reason: str | None
    """What it waits for, such as an executor of its Spark cluster; None: it goes on."""
    since: datetime


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    state: RunState
    ended_at: datetime
    error: str | None = None
    exit_code: int | None = None
