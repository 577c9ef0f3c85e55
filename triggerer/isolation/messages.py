"""What the service and a guest say to one another; the same for a thread and for a process."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from triggerer.config import CoreSettings


class Setup(NamedTuple):
    """What a process is told before anything else: whose guest it is, and how it makes the trigger."""

    name: str
    classpath: str
    kwargs: dict[str, Any]
    dags_folder: Path | None
    allowed_modules: tuple[str, ...]
    log: CoreSettings | None


class Work(Enum):
    """Which of the plugin's generators a guest drives."""

    FILTER = "filter_shared_stream()"
    RUN = "run()"


# Orders: from the service to the guest


class Perform(NamedTuple):
    """Drive the filter, or `run()`; the answer ends with an `Over`."""

    work: Work


class Hand(NamedTuple):
    """Further raw events, packed, in order."""

    events: list[Any]


class EndStream(NamedTuple):
    """The stream raises this to the filter, or returns (None), once it is asked for the next event."""

    error: BaseException | None


class Took(NamedTuple):
    """So many of the derived events have been passed on; the guest may derive as many more."""

    number: int


class Cancel(NamedTuple):
    """Cancel what is performed; its `Over` comes when it has ended."""


class CleanUp(NamedTuple):
    """Call the trigger's `cleanup()`; the answer is `CleanedUp`."""


class Close(NamedTuple):
    """Nothing more is asked."""


Order = Perform | Hand | EndStream | Took | Cancel | CleanUp | Close


# Reports: from the guest to the service, in the order in which it happened


class Ready(NamedTuple):
    """The trigger is made; orders are taken."""


class Asked(NamedTuple):
    """The filter asks for the next raw event, and so has moved past the one before."""


class Opened(NamedTuple):
    """It was given that event."""


class Derived(NamedTuple):
    """It yielded an event with this payload, packed."""

    payload: Any


class Rejected(NamedTuple):
    """It rejected the raw event that it has open."""


class Over(NamedTuple):
    """What was performed has ended: it returned or was cancelled (None), or raised this."""

    error: BaseException | None


class CleanedUp(NamedTuple):
    """`cleanup()` returned, or raised this."""

    error: BaseException | None


class Gone(NamedTuple):
    """Nothing more will come."""

    error: BaseException


Report = Ready | Asked | Opened | Derived | Rejected | Over | CleanedUp | Gone
