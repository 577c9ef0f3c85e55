"""Which slot a run is given to: sessions are opened rarely, and kept for those who need them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

_WARMING_S: Final = 60.0
"""A session that is still not open may wait for its cluster, for however long."""


class Spark(Enum):
    """How far a slot's Spark session is."""

    COLD = auto()
    WARMING = auto()
    WARM = auto()


class WarmUp:
    """The order to open a Spark session before anybody needs it."""


class Choosable(Protocol):
    """What is asked of a slot."""

    @property
    def is_free(self) -> bool: ...
    @property
    def spark(self) -> Spark: ...
    @property
    def worker(self) -> object | None: ...
    @property
    def given_at(self) -> float: ...


S = TypeVar("S", bound=Choosable)


def is_session_near(slots: Iterable[Choosable]) -> bool:
    """Whether a session is being opened ahead that a run had better wait for."""
    now = time.monotonic()
    return any(slot.spark is Spark.WARMING and now - slot.given_at < _WARMING_S for slot in slots)


def choose_slot(slots: list[S], *, needs_spark: bool) -> S | None:
    """The slot to give a run to; None: wait for one.

    A run that needs Spark prefers a warm session, then waits for one that is being opened rather
    than open a second one next to it. Any other run leaves warm sessions to those that need them.
    """
    free = [slot for slot in slots if slot.is_free]
    if needs_spark:
        warm = [slot for slot in free if slot.spark is Spark.WARM]
        if warm:
            return warm[0]
        if is_session_near(slots):
            return None
    # Processes that are there come before ones that have to be started.
    free.sort(key=lambda slot: (slot.worker is None, slot.spark is Spark.WARM))
    return free[0] if free else None
