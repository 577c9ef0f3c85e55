"""What the parts of a group share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from triggerer.abc import SharedStreamProducer
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
    """One group's log and lanes, its producer, and whether it is ending. Each part of the group is handed it.

    It knows none of the parts, and they know one another only where one is handed to another (`Group`).
    """

    key: Hashable
    settings: RuntimeSettings
    clock: Clock
    lanes: Lanes
    ledger: Ledger
    progress: Progress = field(default_factory=Progress)
    selection: Selection = field(default_factory=Selection)
    readers: dict[Reader, None] = field(default_factory=dict)
    """Who is woken by the next broadcast, once."""
    producer: SharedStreamProducer | None = None
    """In ack mode, once the stream has been opened."""
    is_ending: bool = False
    """Whether nobody can join any more; set where a failure is first seen, before anything is awaited."""
    is_closed: bool = False
    """Whether nothing more may be broadcast or advanced.

    Cancelling alone does not do it: a task that was woken before has its turn first.
    """

    @property
    def is_acknowledged(self) -> bool:
        """Ack mode; otherwise the fast path."""
        return self.ledger.lanes is not None

    @property
    def outstanding(self) -> int:
        """Broadcast and not yet advanced; on the fast path what a subscriber has not read."""
        return self.lanes.outstanding if self.is_acknowledged else len(self.ledger.events)
