"""Checks frames from a worker and from the processes of runs before anything uses them.

A run's process also executes users' code. This code, or a process that it forks, may write into the channel by
accident. Malformed data ends only the run whose code wrote the data. Data in the right form may still be refused by the
store, for instance a name that is too long. The store then refuses only this data, see `executor/result_writer.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from triggerer.domain.attempts import RunProgress, Wait
from triggerer.domain.launches import Launch
from triggerer.domain.text.storable import storable_text
from triggerer.processes.ipc import MalformedFrame
from triggerer.worker.failures import storable
from triggerer.worker.protocol import RunReport, TaskStart


def _with_storable_texts(launch: Launch) -> Launch:
    """Make all texts storable. Hide secrets only in the reason, because a launch is found by its other texts."""
    return replace(
        launch,
        tag=storable_text(launch.tag),
        launcher=storable_text(launch.launcher),
        task_id=launch.task_id and storable_text(launch.task_id),
        place=launch.place and storable_text(launch.place),
        external_id=launch.external_id and storable_text(launch.external_id),
        link=launch.link and storable_text(launch.link),
        reason=launch.reason and storable(launch.reason),
    )


def _with_storable_reason(wait: Wait) -> Wait:
    return replace(wait, reason=wait.reason and storable(wait.reason))


# Clusters produce the texts of launches and waits. These texts may contain secrets, or characters
# that PostgreSQL refuses.
ReportedLaunch = Annotated[Launch, AfterValidator(_with_storable_texts)]
ReportedWait = Annotated[Wait, AfterValidator(_with_storable_reason)]
LAUNCH: Final[TypeAdapter[Launch]] = TypeAdapter(ReportedLaunch)
"""Reads a launch that another process has reported."""


class ReadyFrame(TypedDict):
    """The worker has started."""

    type: Literal["ready"]


class PreparedFrame(TypedDict):
    """A process for the next run waits for an order. The frame carries the descriptor of the process's channel."""

    type: Literal["prepared"]
    process: int
    pid: int


class EndedFrame(TypedDict):
    """A process and its descendants are gone."""

    type: Literal["ended"]
    process: int
    code: int


class SparkFrame(TypedDict):
    """The worker's Spark driver was opened or closed."""

    type: Literal["spark"]
    open: bool


class WarmedFrame(TypedDict):
    """The reply to `warm`: the worker has opened a Spark driver, or `error` says why not."""

    type: Literal["warmed"]
    error: str | None


class StartedFrame(TypedDict):
    """A try of a task has begun, or has failed and the task waits, see `TaskStart`."""

    type: Literal["started"]
    run: int
    start: TaskStart


class WaitingFrame(TypedDict):
    """The run begins to wait, or no longer waits."""

    type: Literal["waiting"]
    run: int
    wait: ReportedWait


class LaunchFrame(TypedDict):
    """The run has a new launch outside its process, or a launch has changed."""

    type: Literal["launch"]
    run: int
    launch: ReportedLaunch


class ProgressFrame(TypedDict):
    """The progress of the run's work on Spark has changed."""

    type: Literal["progress"]
    run: int
    progress: RunProgress


class CalledFrame(TypedDict):
    """The `CallbackOrder` is done: its callbacks were called, or could not be called."""

    type: Literal["called"]
    run: int


class ResultsFrame(TypedDict):
    """Tasks of the run have ended, or the run itself."""

    type: Literal["results"]
    run: int
    report: RunReport


class QueryFrame(TypedDict):
    """A query of the run, for instance for asset events, or the run's request to store a launch."""

    type: Literal["query"]
    run: int
    number: int
    what: str
    fields: dict[str, Any]


WorkerFrame = ReadyFrame | PreparedFrame | EndedFrame | SparkFrame | WarmedFrame
RunFrame = (
    StartedFrame
    | WaitingFrame
    | ProgressFrame
    | LaunchFrame
    | ResultsFrame
    | CalledFrame
    | QueryFrame
)

_WORKER_FRAME: Final[TypeAdapter[WorkerFrame]] = TypeAdapter(
    Annotated[WorkerFrame, Field(discriminator="type")]
)
_RUN_FRAME: Final[TypeAdapter[RunFrame]] = TypeAdapter(
    Annotated[RunFrame, Field(discriminator="type")]
)
_F = TypeVar("_F")


def read_worker_frame(document: Any) -> WorkerFrame:
    """Check that a document is a worker's frame, and return the frame.

    Raises:
        MalformedFrame: No worker sends such a frame.
    """
    return _read(_WORKER_FRAME, document)


def _read(kind: TypeAdapter[_F], document: Any) -> _F:
    try:
        return kind.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MalformedFrame(f"{where}: {first['msg']}" if where else first["msg"]) from error


def read_run_frame(document: Any) -> RunFrame:
    """Check a frame from a run's process, and return it with domain objects as values.

    Raises:
        MalformedFrame: Our code sends no such frame, so users' code has written it.
    """
    frame = _read(_RUN_FRAME, document)
    if frame["type"] == "results":
        end = frame["report"].end
        if end is not None and not end.state.is_final:
            raise MalformedFrame(f"a run does not end as {end.state}")
        for task in frame["report"].tasks:
            if not task.state.is_final:
                raise MalformedFrame(f"a task does not end as {task.state}")
    return frame
