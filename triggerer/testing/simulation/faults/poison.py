"""Poison: messages of a log that one watcher fails each time (contract, rule 18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import LaneOfBroker, Message
    from triggerer.testing.simulation.kernel.scenario import Scenario

_LONGEST_S: Final = 20.0
"""The longest time for which a curable message is poison. Half of the poison messages are curable."""
_MOST_FAILED: Final = 10
"""After this number of failed probes, the watcher stays at its poison message for good. A probe is another message that
is tried."""


class Poison:
    """The poison messages of a seed. This object survives restarts of the simulated process.

    A message is poison for at most one watcher. The other watchers accept the message, so the broker does not
    dead-letter it.
    """

    def __init__(self, scenario: Scenario) -> None:
        rng = self._random = Random(f"{scenario.seed}/poison")
        self.are_over = False
        """Once true, messages are poison only for watchers whose poison lasts to the end (`is_incurable`)."""
        self.is_incurable: Callable[[int], bool] = lambda _: False
        """Whether a watcher may still have poison messages at the end, because they can be parked."""
        self.derives: Callable[[int, Message], bool] = lambda *_: True
        """Whether a watcher's filter yields events for a message or rejects it, instead of skipping it."""
        self.lanes: Callable[[str], Sequence[LaneOfBroker]] = lambda _: []
        """The lanes of a topic."""
        self.count_failed: Callable[[int, int], int] = lambda *_: 0
        """The highest number of failed probes of a watcher for a lane."""
        self.was_tried: Callable[[int, int, Message], bool] = lambda *_: False
        """Whether a message was a probe of a watcher for a lane."""
        self._seed = scenario.seed
        self._share = rng.choice((0.1, 0.3, 0.3))
        self._lasts = rng.random() < 0.5
        self.now: Callable[[], float] = lambda: 0.0
        """The virtual time, in seconds."""
        self._of: dict[str, tuple[int, float]] = {}
        """By message: the watcher for which it is poison, and until when."""

    def takes(self, watcher: int, key: str) -> bool:
        """Return whether the watcher's filter accepts this message, which the filter gets now."""
        if crc32(f"{self._seed} {key}".encode()) % 1_000 >= self._share * 1_000:
            return True
        if key not in self._of:
            is_curable = self._random.random() < 0.5
            until = self.now() + self._random.uniform(0.0, _LONGEST_S) if is_curable else math.inf
            self._of[key] = watcher, until
        return not self._is_poison(watcher, key)

    def _is_poison(self, watcher: int, key: str) -> bool:
        """Whether a message is poison for the watcher now. Until a filter has got the message, the answer is False."""
        affected, until = self._of.get(key, (watcher, -math.inf))
        if affected != watcher or until <= self.now():
            return False
        return not self.are_over or (self._lasts and self.is_incurable(watcher))

    def may_stay_at(self, watcher: int, message: Message) -> bool:
        """Whether a watcher may stay at a poison message for ever, because no probe can show that the watcher is well.

        The probes are the later messages of the lane. If there are none, they are the first messages of the other
        lanes.
        """
        if not self._is_poison(watcher, message.key):
            return False
        if self.count_failed(watcher, message.lane) >= _MOST_FAILED:
            return True
        lanes = self.lanes(message.topic)
        others = lanes[message.lane].messages[message.offset + 1 :]
        if not others:
            firsts = (lane.messages[lane.starts[-1] :][:1] for lane in lanes)
            others = [first for found in firsts for first in found if first.lane != message.lane]
        # Each message is tried as a probe only once. If the watcher failed every message when the probe was tried, the
        # probe proved nothing.
        return all(
            self.was_tried(watcher, message.lane, other) or not self._is_evidence(watcher, other)
            for other in others
        )

    def _is_evidence(self, watcher: int, message: Message) -> bool:
        return not self._is_poison(watcher, message.key) and self.derives(watcher, message)
