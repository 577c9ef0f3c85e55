"""The process, or the machine, stands still for a while: in the midst of a filter, which then goes on at once."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.scenario import Scenario

_MOST: Final = 10
"""Of a seed: after each, streams may have to be claimed and opened again."""


class Standstills:
    """Drawn for each message that a filter is given, by a generator of its own; outlives every process."""

    def __init__(self, scenario: Scenario) -> None:
        self._random = Random(f"{scenario.seed}/where it stands still")
        self._rate = self._random.choice((0.01, 0.05))
        self._rate_behind = self._random.choice((0.05, 0.3))
        self._left = _MOST
        self._lease_s = scenario.lease

    def draw(self, *, is_behind: bool) -> float | None:
        """For how many seconds it stands still now, mostly for longer than its leases; None: it does not.

        Args:
            is_behind: Whether the filter catches up: fewer are given a message then.
        """
        rate = self._rate_behind if is_behind else self._rate
        if not self._left or self._random.random() >= rate:
            return None
        self._left -= 1
        return self._lease_s * self._random.choice((0.3, 1.0, 1.5)) * self._random.uniform(0.9, 1.1)
