"""Launches: the work that an attempt starts outside its own process, such as a session of Spark Connect.

A later attempt finds a launch by its tag. The tag is computed from the attempt's numbers, so the tag is known even if
the attempt died before it could report the launch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid5

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.text.known_fields import known_fields

WORKER: Final = "worker"
"""`Launch.launcher` of work inside the attempt's process. The work ends with this process."""
CONNECT: Final = "connect"
"""`Launch.launcher` of a session on a Spark Connect server. The session continues if its client dies."""

_SESSIONS: Final = UUID("2f8c1a52-6f6e-4f0b-9a57-3f1f6f6d2b1e")


@dataclass(frozen=True, slots=True)
class Launch:
    """The latest report about one launch of the present attempt."""

    tag: str
    """Unique: see `attempt_tag` and `task_tag`."""
    launcher: str
    """The name of the `triggerer.worker.launchers.Launcher` that started the launch, such as `connect` or `yarn`."""
    state: AttemptState
    at: datetime
    """When the launch was seen in this state."""
    task_id: str | None = None
    """The task to which the launch belongs. None: the launch belongs to the whole attempt."""
    place: str | None = None
    """The address of the server or the cluster where the launch runs, without secrets."""
    external_id: str | None = None
    """The id of the launch on its server or cluster, such as the id of an application or a session."""
    link: str | None = None
    """The address of a page about the launch."""
    reason: str | None = None
    """Why the launch is in this state, for people."""


@dataclass(frozen=True, slots=True)
class FormerLaunch:
    """A former attempt's launch that may still be at work."""

    tag: str
    launcher: str
    attempt: int
    """The number of the former attempt."""
    state: AttemptState
    task_id: str | None = None
    place: str | None = None
    external_id: str | None = None
    link: str | None = None
    unknown_since: datetime | None = None
    """When the launch's state became unknown; None: the state is another one."""
    may_continue: bool = False
    """True if the run has not ended since this launch began. Then the run's next attempt may wait for the launch."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FormerLaunch:
        since = document["unknown_since"]
        return cls(
            **{
                **known_fields(cls, document),
                "state": AttemptState(document["state"]),
                "unknown_since": None if since is None else datetime.fromisoformat(since),
            }
        )


def attempt_tag(executor: str, run_pk: int, attempt: int, epoch: int) -> str:
    """Return the tag of an attempt. No other attempt of any installation has it."""
    return f"triggerer-{tag_of_instance(executor)}-{run_pk}-{attempt}-{epoch}"


def task_tag(tag: str, task_id: str, try_number: int) -> str:
    """Return the tag of the launch that belongs to one try of a task. `tag` is the tag of the attempt.

    The tag contains a digest instead of the task's id, because YARN refuses some characters in tags.
    """
    digest = hashlib.sha256(task_id.encode()).hexdigest()[:8]
    return f"{tag}-{digest}-{try_number}"


def tag_of_instance(executor: str) -> str:
    """Return the unique part of an instance's id: the text after the last colon."""
    return executor.rsplit(":", 1)[-1]


def session_id_of(tag: str) -> str:
    """Return the id of the Connect session that belongs to a tag."""
    return str(uuid5(_SESSIONS, tag))
