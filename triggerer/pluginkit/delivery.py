"""What an outcome means for a message, and when a failed one is delivered again. Synchronous, without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final

from triggerer.abc import AdvanceOutcome

_RECENT_S: Final = 60.0


class Judgement(Enum):
    """What the broker is to be told of a message."""

    ACK = "ack"
    """It is done."""
    FAIL = "fail"
    """It is to be delivered again."""
    REJECT = "reject"
    """Nobody will ever be able to use it: it is passed, and dead-lettered where the broker can."""


def judge(outcome: AdvanceOutcome) -> Judgement:
    """Judge by rule 5: one that is both failed and rejected has failed, and so has one that nobody saw.

    One that was rejected and is set aside is done.
    """
    if outcome.failed or not (outcome.acked or outcome.rejected):
        return Judgement.FAIL
    is_lost = outcome.rejected and not outcome.is_set_aside
    return Judgement.REJECT if is_lost else Judgement.ACK


class RecentRefusals:
    """Which places for dead letters have refused a message of late: they are not relied on for a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused_at: dict[str, float] = {}

    def record(self, place: str) -> None:
        """The place has just refused a message."""
        self._refused_at[place] = self._clock()

    def has(self, place: str) -> bool:
        """Whether the place refused a message within the last minute."""
        at = self._refused_at.get(place)
        return at is not None and self._clock() - at < _RECENT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """When a failed message comes again, and when no more.

    Attributes:
        max_deliveries: Failed deliveries after which it is dead-lettered; None: it is delivered again for ever.
        redelivery_delay_s: The first redelivery comes after at most this long; each further one after up to twice as
            long.
        redelivery_delay_max_s: The longest delay.
    """

    max_deliveries: int | None = 10
    redelivery_delay_s: float = 0.5
    redelivery_delay_max_s: float = 60.0
    random: Random = field(default_factory=Random, compare=False, repr=False)

    def is_exhausted(self, deliveries: int) -> bool:
        """Whether so many failed deliveries, this one included, are the limit."""
        return self.max_deliveries is not None and deliveries >= self.max_deliveries

    def delay(self, failures: int) -> float:
        """How many seconds to wait after the so-manieth failure (1: the first), with full jitter."""
        ceiling = self.redelivery_delay_s * 2.0 ** min(max(failures - 1, 0), 32)
        return self.random.uniform(0.0, min(self.redelivery_delay_max_s, ceiling))
