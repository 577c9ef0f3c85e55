"""Decides when a trigger that was restarted after a failure counts as working. Synchronous, no I/O, no clock.

If the broker does not answer, a restarted trigger may run for half a minute before it fails again. So a trigger counts
as failing until it has run 1.5 times as long as the failed attempt (at least 1 s, at most `healthy_after_s`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from triggerer.streams import Member, MemberState

_SHORTEST_S: Final = 1.0
_LONGER: Final = 1.5
"""The new attempt must last this many times as long as the failed attempt."""


@dataclass(slots=True, eq=False)
class _Failed:
    """A trigger whose last attempt failed.

    Attributes:
        lasted: The duration of the trigger's last attempt, in seconds. An attempt that could not make the trigger does
            not count. 0: the last attempt was a success (`healthy_after_s` or longer), or there was no attempt.
        works_at: From this instant the trigger counts as working. None: the trigger does not run now.
    """

    error: BaseException | None
    lasted: float
    works_at: float | None = None


class Attempts:
    """The attempts to run a host's triggers again after a failure. Instants are seconds of one monotonic clock.

    Args:
        healthy_after_s: Every attempt that lasts this long is a success. 0: every attempt is a success at once.
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
                # The trigger could not be made, or this failure is recorded a second time. Keep the last duration.
                lasted = 0.0 if failed is None else failed.lasted
            self._failed[member] = _Failed(member.error, lasted)
        else:
            self._began.pop(member, None)
            self._failed.pop(member, None)

    def error_before(self, member: Member) -> BaseException | None:
        """Return the error of the trigger's last failure, or None if it never failed or counts as working again."""
        failed = self._failed.get(member)
        return None if failed is None else failed.error

    def next_at(self) -> float | None:
        """Return the next instant at which a restarted trigger counts as working, or None if no trigger is waiting."""
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
