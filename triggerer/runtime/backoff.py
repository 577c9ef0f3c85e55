"""Growing delays with full jitter, for whatever is restarted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """The delays before the restarts of one thing, in seconds.

    Each delay is drawn between zero and a ceiling that doubles with every failure, up to `longest`: things that
    failed together do not come back together. A run of `healthy_after` seconds or more resets the ceiling.
    """

    first: float = 1.0
    longest: float = 60.0
    healthy_after: float = 60.0
    random: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_delay(self, ran_for: float) -> float:
        """The delay after a failure that came `ran_for` seconds after the start."""
        if ran_for >= self.healthy_after:
            self.failures = 0
        ceiling = min(self.longest, self.first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return self.random.uniform(0.0, ceiling)
