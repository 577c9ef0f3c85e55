"""Falling behind alone (contract, rule 18) in a simulation: what a seed draws of it, and which watchers are unwell."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final, Literal, get_args
from zlib import crc32

from triggerer.testing.simulation.faults.poison import Poison
from triggerer.testing.simulation.kernel.scenario import (
    has_busy_queue,
    has_instant_answers,
    has_outages,
    has_poison,
    has_relapses,
    has_setting_aside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from triggerer.testing.simulation.kernel.scenario import Scenario


Sickness = Literal["raises", "chokes", "is slow", "hangs", "is absent"]
"""What is the matter with a watcher for a while: its filter raises on each message or on some, the same each time, is
slow, or hangs until its ack timeout; or its trigger cannot be made."""


class Unwell(Exception):
    """Raised in the place of a plugin whose watcher is unwell."""


AMPLE_MESSAGES = 10_000
"""A bound that nothing reaches in a simulation."""
AMPLE_PARKED_BYTES = 1_000_000
"""Likewise."""


MOST_DELIVERIES: Final = 10
"""Of those that are ever reached."""
_OUTAGE_S: Final = 4.0
"""How long an outage lasts at most."""
_RELAPSE_S: Final = 1.0
"""How long a relapse lasts at most."""
_SHORT: Final[tuple[Sickness, ...]] = ("raises", "raises", "chokes", "is slow")
"""What is the matter in relapses: nothing that takes as long as an ack timeout."""


@dataclass(frozen=True, slots=True)
class CatchingUpDraws:
    """Drawn once for each seed, by a generator of its own: the other draws of a seed stay what they were."""

    is_on: bool
    """Whether positions are stored, and the broker's lanes can be read again; of a queue, whether messages are."""
    is_queue: bool
    redeliver_share: float
    """At how many of the starts of a process `on_failure` is "redeliver"."""
    interval_s: float
    """How long it takes on average until a watcher falls ill."""
    longest_s: float
    outage_every_s: float | None
    """How long it takes on average until all watchers of a stream fall ill at once; None: they never do."""
    sets_aside: bool
    """Whether messages can be stored for single watchers; of a log, those that are set aside."""
    max_messages: int
    """What may be parked for each watcher."""
    max_bytes: int
    """Of these; what a message is stored as has some twelve."""
    total_bytes: int
    """Of all that is parked."""
    dead_letters_at_bound: bool
    """Whether the producer is handed what is beyond that; otherwise the stream is held."""
    max_deliveries: int
    most_recent: int
    """How many of the newest messages of a lane are in memory for those who catch up there."""
    is_unordered: bool
    """Whether each message of a queue is a lane of its own; otherwise they have the lanes of the broker."""
    tidied_every_s: float
    """How long it takes on average until a person decides about what is parked."""
    replay_share: float
    """How much of that is replayed; the rest is discarded."""
    flooded_every_s: float | None
    """How long it takes on average until many messages of one lane arrive at once; None: they never do."""
    most_in_floods: int
    """Of a seed: each may mean a run, and runs take their time."""

    @property
    def has_room(self) -> bool:
        """Whether no bound of what is parked is ever reached."""
        is_ample = self.max_bytes == self.total_bytes == AMPLE_PARKED_BYTES
        return is_ample and self.max_messages == AMPLE_MESSAGES


def draw_catching_up(scenario: Scenario) -> CatchingUpDraws:
    """Draw it for a seed; off on the fast path."""
    rng = Random(f"{scenario.seed}/lagging")
    is_on = rng.random() < 0.8 and scenario.is_acknowledged
    is_busy, is_instant = has_busy_queue(scenario), has_instant_answers(scenario)
    bounds, queues = Random(f"{scenario.seed}/parked"), Random(f"{scenario.seed}/queues")
    has_some = has_outages(scenario)
    drawn = CatchingUpDraws(
        is_on=is_on,
        is_queue=not scenario.is_log,
        sets_aside=is_on and (not scenario.is_log or has_setting_aside(scenario)),
        max_messages=bounds.choice(
            (2, 3, 10, AMPLE_MESSAGES) if is_busy else (2, 10, AMPLE_MESSAGES, AMPLE_MESSAGES)
        ),
        dead_letters_at_bound=bounds.random() < 0.5,
        max_deliveries=bounds.choice((2, MOST_DELIVERIES, 10_000)),
        most_recent=Random(f"{scenario.seed}/memory").choice((1, 3, 10, 2_048, 2_048, 2_048)),
        is_unordered=queues.random() < 0.35 and not scenario.is_log,
        tidied_every_s=queues.choice((2.0, 10.0, 60.0)),
        replay_share=queues.choice((0.0, 0.5, 0.9)),
        flooded_every_s=_draw_floods(scenario, queues),
        most_in_floods=150 if is_instant else 40,
        max_bytes=queues.choice((40, AMPLE_PARKED_BYTES, AMPLE_PARKED_BYTES)),
        total_bytes=queues.choice((60, AMPLE_PARKED_BYTES, AMPLE_PARKED_BYTES, AMPLE_PARKED_BYTES)),
        redeliver_share=rng.choice((0.0, 0.0, 0.0, 0.0, 0.5, 1.0)),
        interval_s=rng.choice((1.0, 1.0, 5.0) if is_busy else (1.0, 5.0, 20.0)),
        longest_s=rng.choice((5.0, 20.0, 2 * scenario.ack_timeout)),
        outage_every_s=Random(f"{scenario.seed}/how often").choice((2.0, 5.0))
        if has_some
        else None,
    )
    if has_poison(scenario):
        return _with_poison(scenario, drawn)
    return _with_relapses(drawn) if has_relapses(scenario) else drawn


def _with_relapses(drawn: CatchingUpDraws) -> CatchingUpDraws:
    """Watchers are behind again and again, and not for long: `Relapses` sees to that."""
    return replace(drawn, redeliver_share=0.0, interval_s=20.0, longest_s=5.0, flooded_every_s=None)


def _with_poison(scenario: Scenario, drawn: CatchingUpDraws) -> CatchingUpDraws:
    """Most of it is found to be poison, and is replayed: each takes many steps."""
    logs = Random(f"{scenario.seed}/set aside in logs")
    return replace(
        drawn,
        max_deliveries=logs.choice((2, 2, 2, MOST_DELIVERIES)),
        tidied_every_s=logs.choice((1.0, 5.0)),
        replay_share=0.95,
        redeliver_share=logs.choice((0.0, 0.0, 0.0, 0.5)),
        interval_s=logs.choice((5.0, 20.0)),
        longest_s=5.0,
        flooded_every_s=logs.choice((0.5, 3.0)),
        most_in_floods=60,
    )


def _draw_floods(scenario: Scenario, queues: Random) -> float | None:
    drawn = queues.choice((1.0, 3.0) if has_busy_queue(scenario) else (None, 3.0, 15.0))
    if scenario.is_log:
        return 0.3 if has_instant_answers(scenario) else None
    return drawn


class Health:
    """Which watchers are unwell, and until when; outlives every process."""

    def __init__(self, scenario: Scenario, catching_up_draws: CatchingUpDraws) -> None:
        self.catching_up_draws = catching_up_draws
        self.are_over = False
        """From now on all are well."""
        self.poison = Poison(scenario) if catching_up_draws.is_on and has_poison(scenario) else None
        """Single messages that somebody cannot take."""
        self.random = Random(f"{scenario.seed}/health")
        self.now: Callable[[], float] = lambda: 0.0
        self._unwell: dict[int, tuple[Sickness, float]] = {}
        self._outages = Random(f"{scenario.seed}/what is away")

    def end(self) -> None:
        """From now on nobody falls ill."""
        self.are_over = True
        if self.poison is not None:
            self.poison.are_over = True

    def sicken(self, watcher: int) -> Sickness:
        """Have the watcher be unwell for a while."""
        kind: Sickness = self.random.choice(get_args(Sickness))
        self._unwell[watcher] = (
            kind,
            self.now() + self.random.uniform(0.0, self.catching_up_draws.longest_s),
        )
        return kind

    def relapse(self, watcher: int, random: Random) -> Sickness:
        """Have the watcher be unwell for a moment."""
        kind = random.choice(_SHORT)
        self._unwell[watcher] = kind, self.now() + random.uniform(0.0, _RELAPSE_S)
        return kind

    async def suffer_outages(
        self, streams: Sequence[Collection[int]], note: Callable[[Collection[int]], object]
    ) -> None:
        """Have all watchers of a stream raise at once, again and again, and be well again one after the other.

        Args:
            streams: The watchers of each stream.
            note: Called with those of one.
        """
        random, every_s = self._outages, self.catching_up_draws.outage_every_s
        while every_s is not None:
            await asyncio.sleep(random.expovariate(1.0 / every_s))
            if self.are_over:
                return
            watchers = sorted(random.choice(streams))
            note(watchers)
            for watcher in watchers:
                self._unwell[watcher] = "raises", self.now() + random.uniform(0.0, _OUTAGE_S)

    def of(self, watcher: int) -> Sickness | None:
        """What is the matter with the watcher; None: nothing."""
        kind, until = self._unwell.get(watcher, (None, 0.0))
        return None if self.are_over or until <= self.now() else kind

    def check_making(self, watcher: int) -> None:
        """Called where the watcher's trigger is made.

        Raises:
            Unwell: It cannot be made now.
        """
        if self.of(watcher) == "is absent":
            raise Unwell("it cannot be made")

    async def suffer(self, watcher: int, message: str) -> None:
        """Called where the watcher's filter is given a message, by its key.

        Raises:
            Unwell: The filter raises.
        """
        if self.poison is not None and not self.poison.takes(watcher, message):
            raise Unwell("on this message, each time")
        match self.of(watcher):
            case "raises":
                raise Unwell("on each message")
            case "chokes" if crc32(f"{watcher} {message}".encode()) % 3 == 0:
                raise Unwell("on this message")
            case "is slow":
                await asyncio.sleep(self.random.uniform(0.0, 3.0))
            case "hangs":
                await asyncio.get_running_loop().create_future()
