"""The events that people are notified of, and the decision which of them to report now. No clock, no database.

An *occurrence* is news that people were not notified of yet. The store finds occurrences by comparing the present state
with its record of earlier notifications, so a crash loses no occurrence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class Event(StrEnum):
    """An event that `[notify] on` may name."""

    WATCHER_FAILING = "watcher_failing"
    """A watcher is failing, or works again after a notification that it is failing."""
    PARKED = "parked"
    """Messages of a watcher are parked."""
    RUN_FAILED = "run_failed"
    """A run of a DAG has failed, after all its attempts."""


NOTIFIED: Final = tuple(event.value for event in Event)
QUIET: Final = timedelta(minutes=10)
"""The least time between two messages about one object."""
MOST_SINGLE: Final = 5
"""The most watchers and DAGs that get a notification of their own within `QUIET`. If more are due, all that are due
share one digest."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """News about one object: a watcher or a DAG."""

    event: Event
    subject: str
    """The identity of the object: the id of the watcher, or of the DAG."""
    name: str
    """The name of the object: `ASSET/WATCHER`, or the id of the DAG."""
    since: datetime
    """When the first failure happened, or the first message was parked."""
    count: int = 1
    """The number of failed runs, or of parked messages, that people were not notified of."""
    error: str | None = None
    """The error of the latest failure, or of the message that was parked last."""
    run_id: str | None = None
    """The run that failed last."""
    is_over: bool = False
    """True: the watcher works again, after a notification that it is failing."""
    rows: tuple[int, ...] = ()
    """The primary keys of the runs or messages."""

    @property
    def key(self) -> tuple[str, str]:
        """The key of the occurrence's object in a mapping of `LastNotification`."""
        return self.event.value, self.subject


class Severity(StrEnum):
    """How a target marks a message, for example with a colour. Apprise uses the same values."""

    FAILURE = "failure"
    SUCCESS = "success"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class NotificationText:
    """A message to people, as plain text."""

    title: str
    body: str
    severity: str = Severity.FAILURE.value


@dataclass(frozen=True, slots=True)
class LastNotification:
    """The last message about an object."""

    at: datetime
    is_single: bool = True
    """True: the object had a message of its own. False: it was in a digest."""
    is_failing: bool = False
    """True: the last notification said that the watcher is failing."""
    since: datetime | None = None
    """When the watcher began to fail."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The occurrences to report now."""

    single: Sequence[Occurrence] = ()
    """Each of these has a message of its own."""
    digest: Sequence[Occurrence] = ()
    """All of these are in one message."""


def decide(
    occurrences: Sequence[Occurrence],
    last_notified: Mapping[tuple[str, str], LastNotification],
    digest_at: datetime | None,
    now: datetime,
) -> Decision:
    """Choose the occurrences to report now. The store returns the other occurrences again next time.

    Args:
        last_notified: The last notification about each watcher or DAG, by `Occurrence.key`.
        digest_at: When the last digest was made. None: no digest was made.
    """
    recent = {key for key, one in last_notified.items() if now - one.at < QUIET}
    due = [one for one in occurrences if one.key not in recent]
    singles = sum(last_notified[key].is_single for key in recent)
    if singles + len(due) <= MOST_SINGLE:
        return Decision(single=due)
    if digest_at is None or now - digest_at >= QUIET:
        return Decision(digest=due)
    return Decision()
