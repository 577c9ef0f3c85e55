"""The protocol of launchers. They are synchronous, and run in the run's process.

The rule that keeps two attempts apart: the tag is stored before `launch` is called, and a next attempt calls `find`
and `stop` for each tag of a former attempt before it executes code of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from triggerer.domain.attempt_states import AttemptState


@dataclass(frozen=True, slots=True)
class Intent:
    """Something to launch, under a tag that is stored already."""

    tag: str
    run: str
    """The DAG, the run and the task, in words for lists of applications."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the launcher needs, such as the application, its arguments and its configuration."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A launch, as its place knows it."""

    tag: str
    external_id: str | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """The launch works, or may begin to work at any moment."""

    handle: Handle
    progress: str | None = None
    """How far it is, in words, such as `waits for an executor`."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The launch has ended and will not begin again."""

    handle: Handle
    state: AttemptState
    """One of the ends."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The place answered, would know the launch, and does not. So the launch does not work, and never will.

    A launcher may return this only if the source is complete. A list that was lost with a restart is complete if the
    launch was lost with it.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell now whether the launch works."""

    reason: str
    """A clause for people, such as `the Spark Connect server sc://host:15002 does not answer`."""


Sighting = Running | Ended | Absent | Unknown
"""The answer to the question about a launch."""


class Launcher(Protocol):
    """Starts work in one kind of place.

    Attributes:
        name: The name that the store keeps with each launch.
        place: The address of the server or the cluster where it launches, without secrets. None: there is only one.
        can_reattach: True if `watch` can follow a launch of a former attempt, so that it need not be stopped.
    """

    name: str
    place: str | None
    can_reattach: bool

    def launch(self, intent: Intent) -> Handle:
        """Start the work under the intent's tag, and return as soon as the place has accepted it.

        Raises:
            SubmitFailed: The place refused, and nothing works. If the place did not answer, the launch may work, and
                `find` tells.
        """

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        """Look for a launch by its tag. It never raises: a failed look is `Unknown`.

        Args:
            external_id: The launch's id in its place, if it is known. It only makes the look quicker.
        """

    def stop(self, handle: Handle) -> Sighting:
        """Stop a launch, and return what is known afterwards: `Ended`, `Absent`, or `Unknown`. It never raises.

        `Running`: the place has accepted the stop, and the launch still unwinds. `find` tells when it is gone.
        """

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        """Yield a launch's state at each change, until it has ended or is absent. `Unknown` comes between."""
