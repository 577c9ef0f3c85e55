"""Messages of a log that one watcher cannot take, however often it is given them (contract, rule 18)."""

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
"""After so much time what its filter needs for half of them is there, if somebody gives it them once more."""
_MOST_FAILED: Final = 10
"""So many tries with others that all failed, and the lane stands, however long."""


class Poison:
    """Drawn once for each seed, by a generator of its own; outlives every process.

    A message is poison for one watcher at most, so that others take it, and it is not the broker's to dead-letter.
    """

    def __init__(self, scenario: Scenario) -> None:
        rng = self._random = Random(f"{scenario.seed}/poison")
        self.are_over = False
        """From now on every watcher takes everything, unless some never do."""
        self.is_incurable: Callable[[int], bool] = lambda _: False
        """Whether the watcher may be left as it is then: what it cannot take can be set aside."""
        self.derives: Callable[[int, Message], bool] = lambda *_: True
        """Whether something derives from a message for a watcher that takes it, or it rejects it."""
        self.lanes: Callable[[str], Sequence[LaneOfBroker]] = lambda _: []
        """Of a topic."""
        self.count_failed: Callable[[int, int], int] = lambda *_: 0
        """With how many messages a watcher has failed at most when it was tried with them for a lane."""
        self.was_tried: Callable[[int, int, Message], bool] = lambda *_: False
        """Whether a watcher was tried with a message for one of this lane."""
        self._seed = scenario.seed
        self._share = rng.choice((0.1, 0.3, 0.3))
        self._lasts = rng.random() < 0.5
        self.now: Callable[[], float] = lambda: 0.0
        """The virtual time, in seconds."""
        self._of: dict[str, tuple[int, float]] = {}
        """By message for whom it is poison, and until when."""

    def takes(self, watcher: int, key: str) -> bool:
        """The watcher's filter is given this message. Whether it can take it."""
        if crc32(f"{self._seed} {key}".encode()) % 1_000 >= self._share * 1_000:
            return True
        if key not in self._of:
            is_curable = self._random.random() < 0.5
            until = self.now() + self._random.uniform(0.0, _LONGEST_S) if is_curable else math.inf
            self._of[key] = watcher, until
        return not self._is_poison(watcher, key)

    def _is_poison(self, watcher: int, key: str) -> bool:
        """Whether it is, as far as the message was given to anybody."""
        affected, until = self._of.get(key, (watcher, -math.inf))
        if affected != watcher or until <= self.now():
            return False
        return not self.are_over or (self._lasts and self.is_incurable(watcher))

    def may_stay_at(self, watcher: int, message: Message) -> bool:
        """Whether a watcher may stand at a message for ever: no other tells that the message is to blame.

        Tried are those behind it in its lane, and, where there are none, the first of each other lane.
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
        # Each is tried once, perhaps when the watcher took nothing.
        return all(
            self.was_tried(watcher, message.lane, other) or not self._is_evidence(watcher, other)
            for other in others
        )

    def _is_evidence(self, watcher: int, message: Message) -> bool:
        return not self._is_poison(watcher, message.key) and self.derives(watcher, message)
