"""What the manager hands to everything that it hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Final, Literal

from triggerer.backoff import Backoff
from triggerer.domain.events import EventSink
from triggerer.domain.watchers.lane_positions import PositionSink
from triggerer.domain.watchers.parked import ParkedStore
from triggerer.domain.watchers.stream_states import EventsWithState, StateStore
from triggerer.processes.own_lease import OwnLease
from triggerer.streams.clock import Clock, SystemClock
from triggerer.streams.delivery.pending_limit import PendingLimit
from triggerer.streams.settings import RuntimeSettings

_MOST_PENDING_BEHIND: Final = 1_000


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The sink, the clock, the bounds, and whether what fails is restarted."""

    sink: EventSink
    positions: PositionSink | None = None
    """Where it is stored who is behind. None: nobody falls behind alone, and the broker redelivers to all."""
    parked: ParkedStore | None = None
    """Where messages are set aside. None: nowhere, and a lane stands at what its watcher cannot take."""
    states: StateStore | None = None
    """Where producers without a broker have their state stored. None: nowhere, and they cannot be opened."""
    with_state: EventsWithState | None = None
    """Where events are stored together with the state that passes them: `sink`'s other side. None: one by one."""
    parked_at_bound: Literal["hold", "dead_letter"] = "hold"
    """What becomes of a message that cannot be set aside, since a bound is reached: its lane stands, or the producer
    hands it over."""
    falls_behind: bool = True
    """False: nobody falls behind from now on. Who is behind already still catches up."""
    catch_up_pending: PendingLimit = field(
        default_factory=lambda: PendingLimit(_MOST_PENDING_BEHIND)
    )
    """Of all who catch up together. They take no room from the head, and what is live waits for so many rows at most
    in the group commit before its own."""
    clock: Clock = field(default_factory=SystemClock)
    now: Callable[[], datetime] = _utc_now
    """For times that are shown. Nothing is decided by it."""
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    restarts: bool = True
    """False in the testing harness: a group or trigger that has ended is not started again, except by
    `Member.restart` where watchers may fall behind."""
    restart_first: float = 1.0
    restart_longest: float = 60.0
    random: Random = field(default_factory=Random)
    """For the jitter of restarts."""
    lease: OwnLease = field(default_factory=OwnLease.unlimited)
    """The lease on all streams. When it is over nothing is opened, broadcast or advanced; who keeps it stops them."""

    def retry_backoff(self) -> Backoff:
        """The delays between the attempts at one message, before it is set aside: its lane waits meanwhile."""
        return Backoff(
            first=self.restart_first / 10, longest=self.restart_longest / 12, random=self.random
        )

    def restart_backoff(self) -> Backoff:
        """The delays between the starts of one stream, or of one trigger."""
        return Backoff(first=self.restart_first, longest=self.restart_longest, random=self.random)
