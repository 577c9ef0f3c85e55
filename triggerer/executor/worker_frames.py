"""Checks frames from a worker before anything uses them.

The worker's process also runs users' code, which may write into the channel by accident: through a descriptor that a
fork inherited, or whose number it got again after closing it. Only that code's own run may suffer.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from triggerer.domain.attempts import Progress, Wait
from triggerer.domain.launches import Launch
from triggerer.processes.ipc import MalformedFrame
from triggerer.worker.protocol import RunReport, TaskStart


class ReadyFrame(TypedDict):
    """The worker accepts orders."""

    type: Literal["ready"]


class SparkFrame(TypedDict):
    """Says whether the worker's Spark session is open now."""

    type: Literal["spark"]
    open: bool


class WarmedFrame(TypedDict):
    """The order `warm` was executed, or failed."""

    type: Literal["warmed"]
    error: str | None


class StartedFrame(TypedDict):
    """A try of a task has begun."""

    type: Literal["started"]
    run: int
    start: TaskStart


class WaitingFrame(TypedDict):
    """The run begins to wait, or no longer waits."""

    type: Literal["waiting"]
    run: int
    wait: Wait


class LaunchFrame(TypedDict):
    """The run has launched something outside its process, or knows more about it now."""

    type: Literal["launch"]
    run: int
    launch: Launch


class ProgressFrame(TypedDict):
    """The run's Spark work has come further."""

    type: Literal["progress"]
    run: int
    progress: Progress


class CalledFrame(TypedDict):
    """The callbacks of the order `callback` were called."""

    type: Literal["called"]
    run: int


class ResultsFrame(TypedDict):
    """Tasks of the run have ended, or the run itself."""

    type: Literal["results"]
    run: int
    report: RunReport


class QueryFrame(TypedDict):
    """A question of the run about asset events."""

    type: Literal["query"]
    run: int
    number: int
    what: str
    fields: dict[str, Any]


Frame = (
    ReadyFrame
    | SparkFrame
    | WarmedFrame
    | StartedFrame
    | WaitingFrame
    | ProgressFrame
    | LaunchFrame
    | ResultsFrame
    | CalledFrame
    | QueryFrame
)

_FRAME: Final[TypeAdapter[Frame]] = TypeAdapter(Annotated[Frame, Field(discriminator="type")])


def read_frame(document: Any) -> Frame:
    """Return a worker's frame, with domain objects as values.

    Raises:
        MalformedFrame: No worker sends such a frame.
    """
    try:
        frame = _FRAME.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MalformedFrame(f"{where}: {first['msg']}" if where else first["msg"]) from error
    if frame["type"] == "results":
        end = frame["report"].end
        if end is not None and not end.state.is_final:
            raise MalformedFrame(f"a run does not end as {end.state}")
        for task in frame["report"].tasks:
            if not task.state.is_final:
                raise MalformedFrame(f"a task does not end as {task.state}")
    return frame
