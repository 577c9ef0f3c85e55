"""Faults that make single watchers fall behind (contract, rule 18). A seed draws which faults occur, and when."""

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
"""A temporary fault of a watcher.

- `raises`: the filter raises on each message.
- `chokes`: the filter raises on some messages, each time on the same ones.
- `is slow`: the filter needs up to 3 s for a message.
- `hangs`: the filter hangs until the ack timeout.
- `is absent`: the trigger's constructor fails.
"""


class Unwell(Exception):
    """Raised, as if by the plugin, while a watcher is unwell."""


AMPLE_MESSAGES = 10_000
"""A bound in messages that a simulation never reaches."""
AMPLE_PARKED_BYTES = 1_000_000
"""A bound in bytes that a simulation never reaches."""


MOST_DELIVERIES: Final = 10
"""The highest `max_deliveries` that a simulation can reach."""
_OUTAGE_S: Final = 4.0
"""The longest outage."""
_RELAPSE_S: Final = 1.0
"""The longest relapse."""
_SHORT: Final[tuple[Sickness, ...]] = ("raises", "raises", "chokes", "is slow")
"""The faults in relapses. All of them are shorter than an ack timeout."""


@dataclass(frozen=True, slots=True)
class CatchingUpDraws:
    """The settings for falling behind and catching up, drawn once for each seed.

    The settings have their own random generators, so that their draws do not change the seed's other random choices.
    """

    is_on: bool
    """Whether a watcher can fall behind alone. If so, the store takes positions of a log, or
    messages of a queue.
    """
    is_queue: bool
    redeliver_share: float
    """The probability that `on_failure` is "redeliver" when a process starts."""
    interval_s: float
    """The average time until the next watcher becomes unwell."""
    longest_s: float
    """The longest time that a watcher is unwell."""
    outage_every_s: float | None
    """The average time until all watchers of a stream become unwell together; None if they never do."""
    sets_aside: bool
    """Whether messages can be stored or parked for single watchers."""
    max_messages: int
    """The bound of parked messages for each watcher."""
    max_bytes: int
    """The bound of parked bytes for each watcher. A message has about twelve bytes."""
    total_bytes: int
    """The bound of all parked bytes."""
    dead_letters_at_bound: bool
    """Whether messages beyond a bound are dead-lettered. Otherwise the stream waits for room."""
    max_deliveries: int
    most_recent: int
    """The number of messages in a lane tail."""
    is_unordered: bool
    """Whether each message of a queue is its own lane. Otherwise messages have the broker's lanes."""
    tidied_every_s: float
    """The average time until the operator decides about parked messages."""
    replay_share: float
    """The fraction of parked messages that the operator replays. The others are discarded."""
    flooded_every_s: float | None
    """The average time until many messages of one lane arrive at once; None if they never do."""
    most_in_floods: int
    """The most messages in all floods of a seed together. Each message may cause a run, and runs take time."""

    @property
    def has_room(self) -> bool:
        """Whether the bounds of parked messages are too large to be reached."""
        is_ample = self.max_bytes == self.total_bytes == AMPLE_PARKED_BYTES
        return is_ample and self.max_messages == AMPLE_MESSAGES


def draw_catching_up(scenario: Scenario) -> CatchingUpDraws:
    """Draw the settings of a seed. Catching up is off on the fast path, and in a fifth of the other seeds."""
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
    """Leave most faults to `Relapses`, which makes watchers fall behind for a moment, again and again."""
    return replace(drawn, redeliver_share=0.0, interval_s=20.0, longest_s=5.0, flooded_every_s=None)


def _with_poison(scenario: Scenario, drawn: CatchingUpDraws) -> CatchingUpDraws:
    """Make other faults rare, so that most steps of the seed go to parking poison messages and replaying them."""
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
    """Says which watchers are unwell, and until when. It continues when the simulated process restarts."""

    def __init__(self, scenario: Scenario, catching_up_draws: CatchingUpDraws) -> None:
        self.catching_up_draws = catching_up_draws
        self.are_over = False
        """Once true, all watchers are well."""
        self.poison = Poison(scenario) if catching_up_draws.is_on and has_poison(scenario) else None
        """The messages that a watcher fails each time; None if the seed has no such messages."""
        self.random = Random(f"{scenario.seed}/health")
        self.now: Callable[[], float] = lambda: 0.0
        self._unwell: dict[int, tuple[Sickness, float]] = {}
        self._outages = Random(f"{scenario.seed}/what is away")

    def end(self) -> None:
        """Make all watchers well, for good."""
        self.are_over = True
        if self.poison is not None:
            self.poison.are_over = True

    def sicken(self, watcher: int) -> Sickness:
        """Make a watcher unwell for a while."""
        kind: Sickness = self.random.choice(get_args(Sickness))
        self._unwell[watcher] = (
            kind,
            self.now() + self.random.uniform(0.0, self.catching_up_draws.longest_s),
        )
        return kind

    def relapse(self, watcher: int, random: Random) -> Sickness:
        """Make a watcher unwell for a moment."""
        kind = random.choice(_SHORT)
        self._unwell[watcher] = kind, self.now() + random.uniform(0.0, _RELAPSE_S)
        return kind

    async def suffer_outages(
        self, streams: Sequence[Collection[int]], record: Callable[[Collection[int]], object]
    ) -> None:
        """Let all watchers of a stream raise at the same time, again and again. They recover one after the other.

        Args:
            streams: The watchers of each stream.
            record: Called with the watchers of each outage.
        """
        random, every_s = self._outages, self.catching_up_draws.outage_every_s
        while every_s is not None:
            await asyncio.sleep(random.expovariate(1.0 / every_s))
            if self.are_over:
                return
            watchers = sorted(random.choice(streams))
            record(watchers)
            for watcher in watchers:
                self._unwell[watcher] = "raises", self.now() + random.uniform(0.0, _OUTAGE_S)

    def of(self, watcher: int) -> Sickness | None:
        """Return the watcher's current fault; None if the watcher is well."""
        kind, until = self._unwell.get(watcher, (None, 0.0))
        return None if self.are_over or until <= self.now() else kind

    def check_making(self, watcher: int) -> None:
        """Simulate the watcher's current fault when its trigger is created.

        Raises:
            Unwell: The trigger cannot be created now.
        """
        if self.of(watcher) == "is absent":
            raise Unwell("the trigger cannot be made")

    async def suffer(self, watcher: int, message: str) -> None:
        """Simulate the watcher's current fault when its filter gets a message.

        Args:
            message: The message's key.

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
