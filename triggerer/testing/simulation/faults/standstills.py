"""Lets the process, or its machine, stand still while a filter runs. Afterwards this filter continues first."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.scenario import Scenario

_MOST: Final = 10
"""How many standstills a seed has at most. After each, streams may be claimed and opened again, which takes many steps.
"""


class Standstills:
    """At each message that a filter gets, decides whether the process stands still.

    This object survives restarts of the simulated process.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._random = Random(f"{scenario.seed}/where it stands still")
        self._rate = self._random.choice((0.01, 0.05))
        self._rate_behind = self._random.choice((0.05, 0.3))
        self._left = _MOST
        self._lease_s = scenario.lease

    def draw(self, *, is_behind: bool) -> float | None:
        """Return for how many seconds the process stands still now; None if it does not stand still.

        About half of the standstills are longer than a lease.

        Args:
            is_behind: Whether the filter catches up. Such a filter gets fewer messages, so the rate is higher.
        """
        rate = self._rate_behind if is_behind else self._rate
        if not self._left or self._random.random() >= rate:
            return None
        self._left -= 1
        return self._lease_s * self._random.choice((0.3, 1.0, 1.5)) * self._random.uniform(0.9, 1.1)
