"""Decides whether a failed trigger works again, or is only being tried. Synchronous, no I/O, no clock.

In each attempt, a silent broker is noticed after half a minute. So a trigger that was started again is shown as failing
until its attempt has lasted longer than the one before.
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
        lasted: How long that attempt lasted. 0: the attempt had counted as a success before it failed.
        works_at: When the present attempt counts as a success. None: there is no present attempt.
    """

    error: BaseException | None
    lasted: float
    works_at: float | None = None


class Attempts:
    """The attempts of a host's triggers after a failure. Instants are seconds of one monotonic clock.

    Args:
        healthy_after_s: An attempt of this length is a success. 0: each attempt is a success at once.
    """

    def __init__(self, healthy_after_s: float) -> None:
        self._healthy_after_s = healthy_after_s
        self._began: WeakKeyDictionary[Member, float] = WeakKeyDictionary()
        self._failed: WeakKeyDictionary[Member, _Failed] = WeakKeyDictionary()

    def record(self, member: Member, now: float) -> None:
        """Record the member's state, which may have changed."""
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
                # The trigger could not even be made.
                lasted = 0.0 if failed is None else failed.lasted
            self._failed[member] = _Failed(member.error, lasted)
        else:
            self._began.pop(member, None)
            self._failed.pop(member, None)

    def error_before(self, member: Member) -> BaseException | None:
        """Return the error of the last attempt, until the present attempt counts as a success."""
        failed = self._failed.get(member)
        return None if failed is None else failed.error

    def next_at(self) -> float | None:
        """Return the time of the next success, see `take_working`. None: no trigger is being tried."""
        return min(
            (one.works_at for one in self._failed.values() if one.works_at is not None),
            default=None,
        )

    def take_working(self, now: float) -> list[Member]:
        """Remove and return the members whose present attempt counts as a success now."""
        working = [
            member
            for member, failed in self._failed.items()
            if failed.works_at is not None and failed.works_at <= now
        ]
        for member in working:
            del self._failed[member]
        return working
