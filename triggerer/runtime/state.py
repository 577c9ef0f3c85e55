"""What the parts of a group share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from triggerer.abc import SharedStreamProducer
from triggerer.own_lease import OwnLease
from triggerer.runtime.clock import Clock
from triggerer.runtime.lanes import Lanes
from triggerer.runtime.ledger import Ledger
from triggerer.runtime.progress import Progress
from triggerer.runtime.selection import Selection
from triggerer.runtime.settings import RuntimeSettings


class Reader(Protocol):
    """Awaits the next event of the stream."""

    def wake(self) -> None: ...


@dataclass(slots=True, eq=False)
class GroupState:
    """One group's log and lanes, its producer, and whether it is ending. Each part of the group is handed this object.

    `Group` makes the parts. Where one needs another it is handed that too.
    """

    key: Hashable
    settings: RuntimeSettings
    clock: Clock
    lease: OwnLease
    lanes: Lanes
    ledger: Ledger
    progress: Progress = field(default_factory=Progress)
    selection: Selection = field(default_factory=Selection)
    readers: dict[Reader, None] = field(default_factory=dict)
    """Those to be woken by the next broadcast, once."""
    producer: SharedStreamProducer | None = None
    """Set in ack mode, once the stream has been opened."""
    is_ending: bool = False
    """Whether nobody can join any more. Set where a failure is first seen, before anything is awaited."""
    is_closed: bool = False
    """Whether nothing more may be broadcast or advanced.

    Cancelling the tasks is not enough: one that was woken before runs once more.
    """

    @property
    def may_act(self) -> bool:
        """Whether anything may be broadcast or advanced now: it is not closed, and the lease on the stream holds.

        To be looked at after each wait, during which the process may have been stopped or the machine suspended.
        """
        return not (self.is_closed or self.lease.is_over)

    @property
    def is_acknowledged(self) -> bool:
        """Whether it is in ack mode; otherwise it is on the fast path."""
        return self.ledger.lanes is not None

    @property
    def outstanding(self) -> int:
        """How many events are not yet advanced; on the fast path, how many some subscriber has not read."""
        return self.lanes.outstanding if self.is_acknowledged else len(self.ledger.events)
