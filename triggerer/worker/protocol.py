"""The messages between the executor and its workers, over `triggerer.processes.ipc`.

A worker, which forks the processes of runs, receives:

- `setup`: the settings of the worker. This message is the first one.
- `warm`: open Spark's driver now.
- `stop` and `kill`: send SIGTERM or SIGKILL to a run's process. The message has the number from `prepared`.

A worker sends:

- `ready`: the worker has begun.
- `prepared`: a process for the next run exists. The message carries the descriptor of the process's channel.
- `ended`: a process and its descendants are gone.
- `spark`: whether the driver is open now.
- `warmed`: the result of `warm`.

A run's process receives:

- `release`: give Spark's executors back to the cluster. This message comes before the order.
- `run` or `callback`: the order, a `RunOrder` or a `CallbackOrder`.
- `reply`: the answer to the `query` that has the same number.

A run's process sends:

- `started`: a try of a task has begun. Or a try has failed, and the task waits (`TaskStart`).
- `waiting`, `progress` and `launch`: a `Wait`, a `RunProgress` or a `Launch` has changed.
- `query`: a question, such as which events there are, or a request to store a `Launch` before the launch begins.
- `results`: tasks or the run have ended (`RunReport`).
- `called`: the `CallbackOrder` is done: its callbacks were called, or could not be called.

Every message is a JSON object with `type`. Instants are ISO 8601 text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from triggerer.domain.attempts import RunEnd, TaskResult

PAGE_SIZE: Final = 2000
"""The most events in a reply. If the events are large, a reply has fewer, see `triggerer.store.events.run_events`. With
2,000 typical events, a reply has a megabyte, and occupies the event loop for 20 ms."""


SPOOL_FROM: Final = 20_000
"""A DataFrame of at least this many events is read from files (the query `spool`). For fewer events, pages are faster.
"""


@dataclass(frozen=True, slots=True)
class TaskStart:
    """Reports that a try of a task has begun, or has failed.

    After a failed try, the task waits for its retry, or for the end of its work on Spark.
    """

    task_id: str
    try_number: int
    started_at: datetime
    timeout_s: float | None
    """The task's timeout. None: the task has no timeout, or the try has failed."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The results of the tasks that ended after the previous report. The last report also has the run's end."""

    tasks: tuple[TaskResult, ...]
    end: RunEnd | None
    is_unloaded: bool = False
    """True: the DAG file does not load or lacks the DAG, so the run is queued again. `end` has the reason. False if
    `WorkerContext.holds_broken` is off: such a run fails."""
    is_blocked: bool = False
    """True: an earlier attempt may still be at work, so the run is queued again. `end` has the reason."""


def message(kind: str, **fields: Any) -> dict[str, Any]:
    """Return the content of a frame."""
    return {"type": kind, **fields}
