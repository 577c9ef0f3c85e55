"""The protocol of launchers. A launcher is synchronous. It runs in a run's process, or in `launchers.main`.

Launchers keep two attempts of a run from working at the same time:

1. The service stores a launch's tag. Then the attempt calls `launch`.
2. The next attempt of the run looks for each stored tag with `find`. It stops the launch, or watches the launch instead
   of starting another one.

The *place* of a launch is its server or cluster.
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
    """The server or cluster has no such launch, so the launch is not at work, and never will be.

    If the server or cluster may have forgotten a launch that is still at work, a launcher must return `Unknown`.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """The launch may be at work, but the launcher cannot find that out now."""

    reason: str
    """A clause for people, such as `the Spark Connect server sc://host:15002 does not answer`."""


Sighting = Running | Ended | Absent | Unknown
"""The state of a launch, as `Launcher.find` sees it."""


class Launcher(Protocol):
    """Starts, finds and stops work on a server or cluster of one kind, such as YARN.

    Attributes:
        name: The name that the store keeps with each launch.
        place: The address of the server or cluster, without secrets. None: the launcher can reach only one.
        can_reattach: True if `watch` can follow a launch of an earlier attempt, so that the launch may continue.
    """

    name: str
    place: str | None
    can_reattach: bool

    def launch(self, intent: Intent) -> Handle:
        """Start the work under the intent's tag, and return as soon as the server or cluster has accepted the work.

        Raises:
            SubmitFailed: The server or cluster refused the work, or did not answer. Without an answer, the work may
                have started: call `find`.
        """

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        """Look for a launch by its tag. The method never raises: if the search fails, the state is `Unknown`.

        Args:
            external_id: The id that the server or cluster gave the launch, if known. Without this id, the state of a
                launch on a standalone cluster is unknown while the cluster has any active driver, or lists the
                launch's application.
        """

    def stop(self, handle: Handle) -> Sighting:
        """Stop a launch, and return its state. The method never raises: without an answer, the state is `Unknown`.

        If the state is `Running`, the launch has not ended yet. Then call `find` until the launch has ended.
        """

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        """Yield a launch's state at each change, until it is `Ended` or `Absent`. `Unknown` is not the end."""
