"""Messages between the service and a trigger that it has isolated; the same for a thread and for a process."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from triggerer.config import CoreSettings


class Setup(NamedTuple):
    """What a process is told before anything else: which trigger it runs, and how it makes it."""

    name: str
    classpath: str
    kwargs: dict[str, Any]
    dags_folder: Path | None
    allowed_modules: tuple[str, ...]
    log: CoreSettings | None


class GeneratorMethod(Enum):
    """Which of the trigger's generators runs."""

    FILTER = "filter_shared_stream()"
    RUN = "run()"


# Commands: from the service to the trigger


class Start(NamedTuple):
    """Drive the filter, or `run()`; the answer ends with an `Finished`."""

    method: GeneratorMethod


class RawEvents(NamedTuple):
    """Further raw events, packed, in order."""

    events: list[Any]


class EndStream(NamedTuple):
    """The stream raises this to the filter, or returns (None), once it is asked for the next event."""

    error: BaseException | None


class Credit(NamedTuple):
    """So many of the derived events have been passed on; the trigger may derive as many more."""

    number: int


class Cancel(NamedTuple):
    """Cancel what is performed; its `Finished` comes when it has ended."""


class CleanUp(NamedTuple):
    """Call the trigger's `cleanup()`; the answer is `CleanedUp`."""


class Close(NamedTuple):
    """Nothing more is asked."""


Command = Start | RawEvents | EndStream | Credit | Cancel | CleanUp | Close


# Reports: from the trigger to the service, in the order in which it happened


class Ready(NamedTuple):
    """The trigger is made; commands are taken."""


class Requested(NamedTuple):
    """The filter asks for the next raw event, and so has moved past the one before."""


class Opened(NamedTuple):
    """It was given that event."""


class Derived(NamedTuple):
    """It yielded an event with this payload, packed."""

    payload: Any


class Rejected(NamedTuple):
    """It rejected the raw event that it has open."""


class Finished(NamedTuple):
    """What was performed has ended: it returned or was cancelled (None), or raised this."""

    error: BaseException | None


class CleanedUp(NamedTuple):
    """`cleanup()` returned, or raised this."""

    error: BaseException | None


class Terminated(NamedTuple):
    """Nothing more will come."""

    error: BaseException


Report = Ready | Requested | Opened | Derived | Rejected | Finished | CleanedUp | Terminated
