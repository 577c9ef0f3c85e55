"""Decides whether a message is acknowledged, redelivered or dead-lettered, and when it is redelivered. No I/O."""

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
    """The action that the producer must take for a message at the broker."""

    ACK = "ack"
    """The message is done: the broker need not deliver it again."""
    FAIL = "fail"
    """The message must be delivered again."""
    REJECT = "reject"
    """The message can never be processed. It is dead-lettered if the broker can do so, and skipped otherwise."""


def judge(outcome: AdvanceOutcome) -> Judgement:
    """Decide about a message from the subscribers' results (contract, rule 5).

    - FAIL: a subscriber failed the message, or no subscriber acked or rejected it.
    - REJECT: otherwise, if a subscriber rejected the message, and the message is not parked.
    - ACK: in all other cases.
    """
    if outcome.failed or not (outcome.acked or outcome.rejected):
        return Judgement.FAIL
    is_lost = outcome.rejected and not outcome.is_set_aside
    return Judgement.REJECT if is_lost else Judgement.ACK


class RecentRefusals:
    """Remembers which dead-letter queues or topics refused a message, so that the producer avoids them for a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused_at: dict[str, float] = {}

    def record(self, destination: str) -> None:
        """Record that this dead-letter queue or topic has just refused a message."""
        self._refused_at[destination] = self._clock()

    def has(self, destination: str) -> bool:
        """Whether this dead-letter queue or topic refused a message within the last minute."""
        at = self._refused_at.get(destination)
        return at is not None and self._clock() - at < _RECENT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Decides when a failed message is redelivered, and when it is dead-lettered.

    Attributes:
        max_deliveries: The number of failed deliveries after which a message is dead-lettered; None: no limit.
        redelivery_delay_s: The upper limit of the random delay before a message's first redelivery, in seconds. The
            limit doubles with each further redelivery.
        redelivery_delay_max_s: The limit does not grow beyond this number of seconds.
    """

    max_deliveries: int | None = 10
    redelivery_delay_s: float = 0.5
    redelivery_delay_max_s: float = 60.0
    random: Random = field(default_factory=Random, compare=False, repr=False)

    def is_exhausted(self, deliveries: int) -> bool:
        """Whether this number of failed deliveries, including the present one, reaches the limit."""
        return self.max_deliveries is not None and deliveries >= self.max_deliveries

    def delay(self, failures: int) -> float:
        """Return how many seconds to wait before the redelivery: random, up to a limit that grows with `failures`.

        Args:
            failures: How often the message has failed, this failure included.
        """
        ceiling = self.redelivery_delay_s * 2.0 ** min(max(failures - 1, 0), 32)
        return self.random.uniform(0.0, min(self.redelivery_delay_max_s, ceiling))
