"""Runs each case of a conformance suite in its own event loop, or skips the case if a feature is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import ClassVar, Protocol, TypeVar
from unittest import SkipTest


class Feature(StrEnum):
    """A capability that a producer can have beyond the duties of every producer."""

    ORDERING = "ordering"
    """Messages of a lane come in the order of their publication, and are committed as a contiguous prefix."""
    REDELIVERY = "redelivery"
    """A failed message comes again from the same producer, without a restart."""
    DEAD_LETTER = "dead_letter"
    """The source has a place for dead letters. A message goes there after `max_deliveries` failed deliveries, or at
    once if it is rejected. The messages after it still arrive."""
    LOCK_RENEWAL = "lock_renewal"
    """While a producer is open, no other producer receives its messages in flight, even after `lock_s`."""
    SEEK = "seek"
    """The committed position can be set back. Each message that comes again has the same idempotency key as before."""
    IDEMPOTENCY = "idempotency"
    """`get_idempotency_key` differs between messages and does not change across redeliveries."""
    RECREATION = "recreation"
    """The source can be deleted and created again under its name. Its new keys and positions differ from the old ones.
    """
    SIZES = "sizes"
    """`get_size` returns the number of bytes of a message."""
    LANES = "lanes"
    """There are several lanes, and a stuck lane does not delay another."""
    PAUSE = "pause"
    """`pause` stops the delivery; `resume` continues at the next message."""
    PAUSE_LANES = "pause_lanes"
    """`pause_lane` stops the delivery of one lane, and the other lanes continue. Needs `lanes`."""
    LOG = "log"
    """Messages can be read again: `read_lane`, `get_position` and `find_positions`."""
    DUMP = "dump"
    """Events can be stored as bytes: `dump_event` and `load_event`. If `dead_letter` is declared too, a loaded event
    can be dead-lettered."""
    QUEUE = "queue"
    """Messages are gone once consumed, so the store keeps them for a watcher that falls behind. Needs `dump_event`,
    `load_event` and `get_idempotency_key`. The suite also tests `get_size` if `sizes` is declared, and the method
    `dead_letter` if `dead_letter` is declared. A log whose messages can be parked can declare this feature too."""
    STATE = "state"
    """The producer keeps its position in the store. The suite skips the cases of this feature for a producer that does
    not override `use_state`."""


class RunsCases(Protocol):
    """The part of a suite that `case` uses."""

    features: ClassVar[frozenset[str]]

    async def run_case(self, body: Callable[[], Awaitable[None]]) -> None:
        """Set up, await `body`, and tear down."""


SuiteT = TypeVar("SuiteT", bound=RunsCases)


def case(
    *needed: Feature,
) -> Callable[[Callable[[SuiteT], Awaitable[None]]], Callable[[SuiteT], None]]:
    """Turn a coroutine function into a synchronous test, which needs no plugin for asynchronous tests.

    If the suite does not declare all `needed` features, the test is skipped, and the skip names the missing features.
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
    """Return the declared features as strings.

    Raises:
        TypeError: A feature is unknown, or `declared` is not a set, a list or a tuple.
    """
    if isinstance(declared, str) or not isinstance(declared, (set, frozenset, list, tuple)):
        raise TypeError(f"{suite}.features must be a set of features, not {declared!r}")
    known = {feature.value for feature in Feature}
    unknown = sorted(str(feature) for feature in declared if str(feature) not in known)
    if unknown:
        raise TypeError(
            f"{suite}.features has unknown features: {', '.join(unknown)}. "
            f"The known ones are {', '.join(sorted(known))}"
        )
    return frozenset(str(feature) for feature in declared)
