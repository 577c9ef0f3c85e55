"""The protocol of launchers. A launcher is synchronous. It runs in a run's process, or in `launchers.main`.

Launchers keep two attempts of a run from working at the same time. The service stores a launch's tag before `launch` is
called. The next attempt looks for each stored tag with `find`. Then it stops the launch, or watches the launch instead
of starting another. The *place* of a launch is its server or cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from triggerer.domain.attempt_states import AttemptState


@dataclass(frozen=True, slots=True)
class Intent:
    """A launch that is about to begin. Its tag is stored already."""

    tag: str
    run: str
    """The names of the DAG, the run and the task, as a cluster's list of applications shows them."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further input of the launcher, such as the application, its arguments and its configuration."""


@dataclass(frozen=True, slots=True)
class Handle:
    """The names by which a launch can be found at its place."""

    tag: str
    external_id: str | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """The launch is at work, or can begin at any moment."""

    handle: Handle
    progress: str | None = None
    """The launch's progress in words, such as `waits for an executor`."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The launch has ended and will not begin again."""

    handle: Handle
    state: AttemptState
    """A final state."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The place has no such launch, so the launch is not at work, and never will be.

    A launcher must return `Unknown` instead if the place may have forgotten a launch that is still at work.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell now whether the launch is at work."""

    reason: str
    """A clause for people, such as `the Spark Connect server sc://host:15002 does not answer`."""


Sighting = Running | Ended | Absent | Unknown
"""The state of a launch, as `Launcher.find` sees it."""


class Launcher(Protocol):
    """Starts, finds and stops work in one kind of place, such as a YARN cluster.

    Attributes:
        name: The name that the store keeps with each launch.
        place: The address of the server or the cluster where the work runs, without secrets. None: there is only one
            place.
        can_reattach: True if `watch` can follow a launch of a former attempt, so that the launch need not be stopped.
    """

    name: str
    place: str | None
    can_reattach: bool

    def launch(self, intent: Intent) -> Handle:
        """Start the work under the intent's tag, and return as soon as the place has accepted it.

        Raises:
            SubmitFailed: The place refused the work, or did not answer. Without an answer, the launch may be at work
                nevertheless: call `find`.
        """

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        """Look for a launch by its tag. The method never raises: if the search fails, the state is `Unknown`.

        Args:
            external_id: The place's own id of the launch, if it is known. Without this id, the state of a launch on a
                standalone cluster is unknown while any driver is active there.
        """

    def stop(self, handle: Handle) -> Sighting:
        """Stop a launch, and return its state. The method never raises: without an answer, the state is `Unknown`.

        `Running` means that the launch has not ended yet. Then call `find` until it has ended.
        """

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        """Yield a launch's state at each change, until it is `Ended` or `Absent`. `Unknown` is not the end."""
