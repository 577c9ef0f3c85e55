"""The messages between the executor and its workers, over `triggerer.processes.ipc`.

To the worker: `run` (a `RunOrder`), `warm` (open a Spark session now), `release` (the session's executors, as others
wait for them), `callback` (a `CallbackOrder`), `reply` (to `query`).
From it: `ready` (it takes orders), `spark` (whether its session is open now), `started` (a `TaskStart`, unless the task
ends at once), `waiting` (a `Wait`), `results` (a `RunReport`), `called` (as `callback` asked), `query` (a page of
events; answered by `reply` with the same number). Every message is an object with `type`. Instants travel as ISO 8601
text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from triggerer.domain.attempts import RunEnd, TaskResult

PAGE_SIZE: Final = 2000
"""Events per reply, at most: about a megabyte of typical messages, some 20 ms of the event loop. Large ones
are fewer, see `triggerer.store.events.run_events`."""


@dataclass(frozen=True, slots=True)
class TaskStart:
    """A try of a task has begun."""

    task_id: str
    try_number: int
    started_at: datetime
    timeout_s: float | None
    """None: it has no timeout; or the try has failed, and the next one waits for its time."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The tasks of a run that ended since the last report, and the run's end with the last."""

    tasks: tuple[TaskResult, ...]
    end: RunEnd | None
    is_unloaded: bool = False
    """The file could not be loaded, and its runs are held: the run is queued again, and `end` says why."""
    retire: bool = False
    """The worker exits now: something in it, such as its Spark session, is not to be used again."""


def message(kind: str, **fields: Any) -> dict[str, Any]:
    """Make the content of a frame."""
    return {"type": kind, **fields}
