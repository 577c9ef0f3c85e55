"""How a conformance suite runs its cases: each in an event loop of its own, or skipped for a missing feature."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import ClassVar, Protocol, TypeVar
from unittest import SkipTest


class Feature(StrEnum):
    """What a producer's broker may offer beyond what every producer must do."""

    ORDERING = "ordering"
    """Messages of a lane come in the order of their publication, and are committed as a contiguous prefix."""
    REDELIVERY = "redelivery"
    """A failed message comes again from the same producer, without a restart."""
    DEAD_LETTER = "dead_letter"
    """The source has a place for dead letters. A message goes there after `max_deliveries` failed deliveries, or at
    once if it is rejected, and the rest goes on."""
    LOCK_RENEWAL = "lock_renewal"
    """What a producer holds for longer than `lock_s` is given to no other while it is open."""
    SEEK = "seek"
    """The committed position can be set back, and what comes again carries the same idempotency keys."""
    IDEMPOTENCY = "idempotency"
    """`get_idempotency_key` tells messages apart and stays the same across redeliveries."""
    RECREATION = "recreation"
    """The source can be deleted and created again under its name. Keys and positions tell the two apart."""
    SIZES = "sizes"
    """`get_size` tells how many bytes a message has."""
    LANES = "lanes"
    """There are several lanes, and one that is stuck holds up no other."""
    PAUSE = "pause"
    """`pause` stops the delivery, `resume` goes on where it was."""
    PAUSE_LANES = "pause_lanes"
    """With lanes: `pause_lane` stops the delivery of one, and the others go on."""
    LOG = "log"
    """Messages stay when they have been read: `read_lane`, `get_position` and `find_positions`."""
    DUMP = "dump"
    """Events can be kept as bytes: `dump_event` and `load_event`; with dead_letter also the method `dead_letter`."""
    QUEUE = "queue"
    """Messages are gone when they have been read, so what a watcher misses is stored: `dump_event`, `load_event`,
    `get_idempotency_key`, with sizes `get_size`, with dead_letter `dead_letter`. A log can do the same with what is set
    aside."""
    STATE = "state"
    """The place is kept in a state in the store: `use_state`. Its cases are skipped where that is not overridden."""


class RunsCases(Protocol):
    """What `case` asks of a suite."""

    features: ClassVar[frozenset[str]]

    async def run_case(self, body: Callable[[], Awaitable[None]]) -> None:
        """Set up, await `body`, and tear down."""


SuiteT = TypeVar("SuiteT", bound=RunsCases)


def case(
    *needed: Feature,
) -> Callable[[Callable[[SuiteT], Awaitable[None]]], Callable[[SuiteT], None]]:
    """Make a test of a coroutine function: synchronous, so that it needs no plugin for asynchronous tests.

    A suite that does not declare all of `needed` skips it and names what is missing.
    """

    def decorate(body: Callable[[SuiteT], Awaitable[None]]) -> Callable[[SuiteT], None]:
        def test(self: SuiteT) -> None:
            missing = [feature.value for feature in needed if feature not in self.features]
            if missing:
                raise SkipTest(f"{type(self).__name__} lacks {', '.join(missing)}")
            asyncio.run(_without_leftovers(self.run_case(lambda: body(self))))

        test.__name__ = body.__name__
        test.__qualname__ = body.__qualname__
        test.__doc__ = body.__doc__
        return test

    return decorate


async def _without_leftovers(work: Awaitable[None]) -> None:
    await work
    for _ in range(5):  # turns of the loop for tasks that are just ending
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, "tasks were left behind: " + ", ".join(sorted(map(repr, left)))


def checked_features(suite: str, declared: object) -> frozenset[str]:
    """The declared features.

    Raises:
        TypeError: One is unknown, or they are no set or list of texts.
    """
    if isinstance(declared, str) or not isinstance(declared, (set, frozenset, list, tuple)):
        raise TypeError(f"{suite}.features is a set of features, not {declared!r}")
    known = {feature.value for feature in Feature}
    unknown = sorted(str(feature) for feature in declared if str(feature) not in known)
    if unknown:
        raise TypeError(
            f"{suite}.features names {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    return frozenset(str(feature) for feature in declared)
