"""The stores, the clock and the limits that the manager passes to every stream and trigger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Final, Literal

from triggerer.backoff import Backoff
from triggerer.domain.events import EventSink
from triggerer.domain.watchers.bookmarks import BookmarkStore
from triggerer.domain.watchers.lane_positions import PositionSink
from triggerer.domain.watchers.parked import ParkedStore
from triggerer.domain.watchers.stream_states import EventsWithState, StateStore
from triggerer.processes.own_lease import OwnLease
from triggerer.streams.clock import Clock, SystemClock
from triggerer.streams.pending_limit import PendingLimit
from triggerer.streams.settings import RuntimeSettings
from triggerer.streams.store_marks import StoreMarks

_MOST_PENDING_BEHIND: Final = 1_000


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The stores, clock, limits and restart delays that all streams and triggers of the runtime share."""

    sink: EventSink
    positions: PositionSink | None = None
    """Stores the positions of watchers that are behind in a log. None: no watcher may fall behind, and the broker
    redelivers a failed message to all watchers.
    """
    parked: ParkedStore | None = None
    """Stores parked messages and a queue's backlogs.

    None: a watcher of a queue does not fall behind. In a log, a watcher that catches up waits in a lane until it can
    process the lane's next message.
    """
    states: StateStore | None = None
    """Stores the states of producers whose source stores no position. None: such a producer cannot be opened."""
    with_state: EventsWithState | None = None
    """Stores events and the producer's new state in one transaction. None: the state is stored after the events."""
    bookmarks: BookmarkStore | None = None
    """Stores the bookmarks of triggers. None: a trigger that has a bookmark cannot be run."""
    parked_at_bound: Literal["hold", "dead_letter"] = "hold"
    """How to treat a message that cannot be parked because of a limit: let its lane wait, or dead-letter it."""
    falls_behind: bool = True
    """False: no further watcher falls behind. Existing backlogs are read to their end."""
    catch_up_pending: PendingLimit = field(
        default_factory=lambda: PendingLimit(_MOST_PENDING_BEHIND)
    )
    """The limit of unanswered events, shared by all watchers that catch up.

    So at most this number of catch-up events delay the transaction of a live event. Live events have other limits.
    """
    clock: Clock = field(default_factory=SystemClock)
    now: Callable[[], datetime] = _utc_now
    """The wall clock, for times that are shown or stored. Durations and deadlines use `clock`."""
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    restarts: bool = True
    """False in the testing harness: no failed group is opened again. Only `Manager.restart` starts a failed trigger
    again, and only if its watchers may fall behind.
    """
    restart_first: float = 1.0
    restart_longest: float = 60.0
    random: Random = field(default_factory=Random)
    """The random numbers for the jitter of restarts."""
    lease: OwnLease = field(default_factory=OwnLease.unlimited)
    """The lease on all streams.

    Once the lease is over, nothing is opened, broadcast or advanced, and the host closes the streams.
    """
    marks: StoreMarks = field(default_factory=StoreMarks)
    """The marks of the streams. Empty without a store, as in the testing harness."""

    def retry_backoff(self) -> Backoff:
        """Return the delays between the attempts to process one message. The message's lane waits meanwhile."""
        return Backoff(
            first=self.restart_first / 10, longest=self.restart_longest / 12, random=self.random
        )

    def restart_backoff(self) -> Backoff:
        """Return the delays between the starts of one stream, or of one trigger."""
        return Backoff(first=self.restart_first, longest=self.restart_longest, random=self.random)
