"""Which triggers that have failed are only being tried again, and which work again. Synchronous, no I/O, no clock.

A broker that answers nothing is noticed after half a minute, at each attempt. Whoever is tried again is therefore no
sign that all is well: it is shown as failing until it has gone on for longer than the attempt before, which failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from triggerer.streams import Member, MemberState

_SHORTEST_S: Final = 1.0
_LONGER: Final = 1.5


@dataclass(slots=True, eq=False)
class _Failed:
    """A trigger whose last attempt failed.

    Attributes:
        lasted: How long that attempt went on; 0 where it had worked before it failed.
        works_at: When the attempt that goes on now counts as a success; None: none goes on.
    """

    error: BaseException | None
    lasted: float
    works_at: float | None = None


class Attempts:
    """What the triggers of a host do since they failed. Instants are seconds of one monotonic clock.

    Args:
        healthy_after_s: What has gone on for so long has worked. 0: whatever has begun does.
    """

    def __init__(self, healthy_after_s: float) -> None:
        self._healthy_after_s = healthy_after_s
        self._began: WeakKeyDictionary[Member, float] = WeakKeyDictionary()
        self._failed: WeakKeyDictionary[Member, _Failed] = WeakKeyDictionary()

    def note(self, member: Member, now: float) -> None:
        """Look at its state, which may have changed."""
        if not self._healthy_after_s:
            return
        failed = self._failed.get(member)
        if member.state is MemberState.RUNNING:
            began = self._began.setdefault(member, now)
            if failed is not None and failed.works_at is None:
                longer = max(_SHORTEST_S, _LONGER * failed.lasted)
                failed.works_at = began + min(longer, self._healthy_after_s)
        elif member.state is MemberState.FAILING:
            began_at = self._began.pop(member, None)
            if began_at is not None:
                lasted = now - began_at
                lasted = 0.0 if lasted >= self._healthy_after_s else lasted
            else:
                # It could not even be made.
                lasted = 0.0 if failed is None else failed.lasted
            self._failed[member] = _Failed(member.error, lasted)
        else:
            self._began.pop(member, None)
            self._failed.pop(member, None)

    def error_before(self, member: Member) -> BaseException | None:
        """What its last attempt failed with, while it is only being tried again."""
        failed = self._failed.get(member)
        return None if failed is None else failed.error

    def next_at(self) -> float | None:
        """When `take_working` has something to return; None: nothing is being tried."""
        return min(
            (one.works_at for one in self._failed.values() if one.works_at is not None),
            default=None,
        )

    def take_working(self, now: float) -> list[Member]:
        """Those that count as working from now on."""
        working = [
            member
            for member, failed in self._failed.items()
            if failed.works_at is not None and failed.works_at <= now
        ]
        for member in working:
            del self._failed[member]
        return working
