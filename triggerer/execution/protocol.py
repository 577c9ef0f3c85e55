"""What the executor and its workers say to one another over `triggerer.ipc`.

To the worker: `run` (a `RunOrder`), `warm` (open a Spark session now), `release` (the session's executors, as
others wait for them), `reply` (to `ask`).
From it: `ready` (it takes orders), `spark` (whether its session is open now), `started` (a
`TaskStart`), `waiting` (a `Wait`), `results` (a `RunReport`), `ask` (a page of events; answered
by `reply` with the same number). Every message is an object with `type`. Instants travel as ISO 8601 text.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

PAGE_SIZE: Final = 2000
"""Events per reply, at most: about a megabyte of typical messages, some 20 ms of the event loop. Large ones
are fewer, see `triggerer.store.queries.run_events`."""


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One attempt of one run, with all that the worker has to know to execute it."""

    run_pk: int
    dag_id: str
    run_id: str
    run_type: str
    attempt: int
    path: str
    """The DAG file, relative to the DAGs folder."""
    needs_spark: bool
    queued_at: datetime
    run_after: datetime
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    params: dict[str, Any]
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
    """An asset event that a successful task leaves behind."""

    asset_name: str
    asset_uri: str
    extra: dict[str, Any]
    ordinal: int
    """Counts this task's events of one asset, from 0: a repeated attempt gives the same numbers."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskStart:
    """A try of a task has begun."""

    task_id: str
    try_number: int
    started_at: datetime
    timeout_s: float | None
    """None: it has no limit, or none any more: it has failed, and the next one waits for its time."""

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> TaskStart:
        return cls(**{**document, "started_at": datetime.fromisoformat(document["started_at"])})


@dataclass(frozen=True, slots=True)
class Wait:
    """A run that is being executed waits, or does not any more."""

    reason: str | None
    """What it waits for, such as an executor of its Spark cluster; None: it goes on."""
    since: datetime

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Wait:
        return cls(document["reason"], datetime.fromisoformat(document["since"]))


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended, after its last try; `events` is empty unless it succeeded."""

    task_id: str
    state: str
    try_number: int
    started_at: datetime | None
    ended_at: datetime
    error: str | None = None
    events: tuple[EmittedEvent, ...] = ()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> TaskResult:
        values = dict(document)
        values["started_at"] = _instant(values["started_at"])
        values["ended_at"] = datetime.fromisoformat(values["ended_at"])
        values["events"] = tuple(
            EmittedEvent(**{**event, "aliases": tuple(event["aliases"])})
            for event in values["events"]
        )
        return cls(**values)

    def failed(self, error: str) -> TaskResult:
        """The same task, had it ended with this error."""
        return dataclasses.replace(self, state="failed", error=error, events=())


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    state: str
    ended_at: datetime
    error: str | None = None
    exit_code: int | None = None

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RunEnd:
        return cls(**{**document, "ended_at": datetime.fromisoformat(document["ended_at"])})


@dataclass(frozen=True, slots=True)
class RunReport:
    """The tasks of a run that ended since the last report, and the run's end with the last."""

    tasks: tuple[TaskResult, ...]
    end: RunEnd | None
    retire: bool = False
    """The worker exits now: something in it, such as its Spark session, is not to be used again."""

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RunReport:
        end = document["end"]
        return cls(
            tasks=tuple(TaskResult.from_json(task) for task in document["tasks"]),
            end=None if end is None else RunEnd.from_json(end),
            retire=document["retire"],
        )


def message(kind: str, **fields: Any) -> dict[str, Any]:
    """A frame's content."""
    return {"type": kind, **fields}
