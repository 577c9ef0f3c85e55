"""One attempt of a run: what a worker is given to execute, and what comes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
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
    """1, unless an executor died while it ran this run."""
    queued_at: datetime
    run_after: datetime
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    params: Mapping[str, Any]
    partition_key: str | None


@dataclass(frozen=True, slots=True)
class RunOrder(RunDetails):
    """One attempt of a run, with everything that the worker needs to execute it."""

    run_pk: int
    path: str
    """The DAG file, relative to the DAGs folder."""
    needs_spark: bool
    log_path: str

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RunOrder:
        values = dict(document)
        for field in _INSTANTS:
            values[field] = _instant(values[field])
        return cls(**values)


_INSTANTS: Final = (
    "queued_at",
    "run_after",
    "logical_date",
    "data_interval_start",
    "data_interval_end",
)


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
