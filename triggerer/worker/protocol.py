"""The messages between the executor and its workers, over `triggerer.processes.ipc`.

To the worker: `run` (a `RunOrder`), `warm` (open a Spark session now), `release` (give the session's executors to
others), `callback` (a `CallbackOrder`), `reply` (to `query`).
From the worker: `ready` (it accepts orders), `spark` (whether its session is open now), `started` (a `TaskStart`,
unless the task ends at once), `waiting` (a `Wait`), `launch` (a `Launch` has changed), `progress` (a `Progress`),
`results` (a `RunReport`), `called` (after `callback`), `query` (for a page of events; `reply` has the query's number).
The query `launch` stores an intent: the reply comes once the `Launch` is stored. Every message is an object with
`type`. Instants are ISO 8601 text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from triggerer.domain.attempts import RunEnd, TaskResult

PAGE_SIZE: Final = 2000
"""The most events per reply: about a megabyte of typical messages, or 20 ms of the event loop. A reply has fewer large
events, see `triggerer.store.events.run_events`."""


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
    retire: bool = False
    """True: the worker exits now, because a part of it, such as its Spark session, must not be used again."""


def message(kind: str, **fields: Any) -> dict[str, Any]:
    """Return the content of a frame."""
    return {"type": kind, **fields}
