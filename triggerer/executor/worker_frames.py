"""Checks what a worker has sent, before anything is done with it.

The worker's process also runs users' code, which may write into the channel: by accident, through a descriptor that a
fork inherited, or that it closed and whose number it was given again. That must cost its own run only.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from triggerer.domain.attempts import Wait
from triggerer.processes.ipc import MalformedFrame
from triggerer.worker.protocol import RunReport, TaskStart


class ReadyFrame(TypedDict):
    """It takes orders."""

    type: Literal["ready"]


class SparkFrame(TypedDict):
    """Whether its Spark session is open now."""

    type: Literal["spark"]
    open: bool


class WarmedFrame(TypedDict):
    """The order `warm` is done, or could not be."""

    type: Literal["warmed"]
    error: str | None


class StartedFrame(TypedDict):
    """A try of a task has begun."""

    type: Literal["started"]
    run: int
    start: TaskStart


class WaitingFrame(TypedDict):
    """The run waits, or does not any more."""

    type: Literal["waiting"]
    run: int
    wait: Wait


class CalledFrame(TypedDict):
    """What the order `callback` asked for is done."""

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
    | ResultsFrame
    | CalledFrame
    | QueryFrame
)

_FRAME: Final[TypeAdapter[Frame]] = TypeAdapter(Annotated[Frame, Field(discriminator="type")])


def read_frame(document: Any) -> Frame:
    """Return what a worker has sent, with its values as those of the domain.

    Raises:
        MalformedFrame: A worker does not send this.
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
