"""Messages between the service and an isolated trigger, in a thread or in a process.

Raw events and payloads are sent *packed* (`RemoteTrigger.pack`). For a process they are pickled,
because a process cannot share objects with the service. For a thread they stay unchanged.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from triggerer.config import CoreSettings


class Setup(NamedTuple):
    """The first message to a process: the trigger to make, and the settings for making it."""

    name: str
    classpath: str
    kwargs: dict[str, Any]
    dags_folder: Path | None
    allowed_modules: tuple[str, ...]
    log: CoreSettings | None


class GeneratorMethod(Enum):
    """Which generator of a trigger to run: the filter or `run()`."""

    FILTER = "filter_shared_stream()"
    RUN = "run()"


# Commands: from the service to the trigger


class Start(NamedTuple):
    """Run the filter, or `run()`, to its end. `Finished` reports the end."""

    method: GeneratorMethod


class RawEvents(NamedTuple):
    """The next raw events of the stream, packed, in order."""

    events: list[Any]


class EndStream(NamedTuple):
    """The stream has ended. The filter's next request raises `error`. None: the filter's `async for` ends."""

    error: BaseException | None


class Credit(NamedTuple):
    """The service has received this number of derived events, so the trigger may send this number of further events."""

    number: int


class Cancel(NamedTuple):
    """Cancel the filter, or `run()`. `Finished` reports the end."""


class CleanUp(NamedTuple):
    """Call the trigger's `cleanup()`; the answer is `CleanedUp`."""


class Close(NamedTuple):
    """No further command comes."""


Command = Start | RawEvents | EndStream | Credit | Cancel | CleanUp | Close


# Reports: from the trigger to the service, in order of occurrence


class Ready(NamedTuple):
    """The trigger is made, and executes commands from now on."""


class Requested(NamedTuple):
    """The filter requests the next raw event, so it has moved past the previous one."""


class Opened(NamedTuple):
    """The filter has received the raw event that it requested."""


class Derived(NamedTuple):
    """The filter, or `run()`, yielded an event with this payload, packed."""

    payload: Any
    size_bytes: int
    """The size of the packed payload; 0 if the size is unknown."""
    partition_key: str | None = None


class Rejected(NamedTuple):
    """The filter rejected the raw event that it received last."""

    reason: str | None = None


class Finished(NamedTuple):
    """The filter, or `run()`, has ended: it raised `error`. None: it returned or was cancelled."""

    error: BaseException | None


class CleanedUp(NamedTuple):
    """`cleanup()` has ended: it raised `error`. None: it returned."""

    error: BaseException | None


class Terminated(NamedTuple):
    """The last report: the thread or process has ended."""

    error: BaseException


Report = Ready | Requested | Opened | Derived | Rejected | Finished | CleanedUp | Terminated
