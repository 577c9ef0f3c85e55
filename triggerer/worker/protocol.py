"""The messages between the executor and its workers, over `triggerer.processes.ipc`.

To a worker: `warm` (open Spark's driver now), `stop` and `kill` (one of its processes, by number).
From a worker: `ready`, `prepared` (a process accepts an order; with the descriptor of its channel), `ended` (that
process and all that it left are gone), `spark` (whether the driver is open now), `warmed` (after `warm`).
To a run's process: `release` (give Spark's executors to others), then `run` (a `RunOrder`) or `callback` (a
`CallbackOrder`), and `reply` (to `query`).
From a run's process: `started` (a `TaskStart`, unless the task ends at once), `waiting` (a `Wait`), `launch` (a
`Launch` has changed), `progress` (a `Progress`), `results` (a `RunReport`), `called` (after `callback`), `query` (for a
page of events; `reply` has the query's number). The query `launch` stores an intent: the reply comes once the `Launch`
is stored.
Every message is an object with `type`. Instants are ISO 8601 text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from triggerer.domain.attempts import RunEnd, TaskResult

PAGE_SIZE: Final = 2000
"""The most events per reply: about a megabyte of typical messages, or 20 ms of the event loop. If the events are
large, a reply has fewer of them; see `triggerer.store.events.run_events`."""


SPOOL_FROM: Final = 20_000
"""A sequence of at least this many events is read from files (the query `spool`). Below, pages are faster."""


@dataclass(frozen=True, slots=True)
class TaskStart:
    """A try of a task has begun."""

    task_id: str
    try_number: int
    started_at: datetime
    timeout_s: float | None
    """None: the task has no timeout, or the try has failed and the next one waits for its time."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The tasks of a run that ended after the previous report. The last report also has the run's end."""

    tasks: tuple[TaskResult, ...]
    end: RunEnd | None
    is_unloaded: bool = False
    """True: the file does not load and its runs are held, so the run is queued again. `end` has the reason."""
    is_blocked: bool = False
    """True: nobody can tell whether a former attempt still works, so the run is queued again. `end` has the reason."""


def message(kind: str, **fields: Any) -> dict[str, Any]:
    """Return the content of a frame."""
    return {"type": kind, **fields}
