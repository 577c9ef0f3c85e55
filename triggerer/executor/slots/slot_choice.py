"""Chooses the slot for a run. Runs that need Spark prefer a warm session, and other runs avoid it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

_WARMING_S: Final = 60.0
"""How long runs wait for a session to open.

A session that takes longer may be waiting for its cluster, so runs no longer wait for it.
"""


class Spark(Enum):
    """The state of a slot's Spark session."""

    COLD = auto()
    WARMING = auto()
    WARM = auto()


class WarmUp:
    """The job to open a Spark session before a run needs it."""


class Choosable(Protocol):
    """The attributes of a slot on which the choice depends."""

    @property
    def is_free(self) -> bool: ...
    @property
    def spark(self) -> Spark: ...
    @property
    def worker(self) -> object | None: ...
    @property
    def busy_since(self) -> float: ...


S = TypeVar("S", bound=Choosable)


def is_session_near(slots: Iterable[Choosable]) -> bool:
    """Return whether a session is about to open, so that a run should wait for it."""
    now = time.monotonic()
    return any(slot.spark is Spark.WARMING and now - slot.busy_since < _WARMING_S for slot in slots)


def choose_slot(slots: list[S], *, needs_spark: bool) -> S | None:
    """Return the slot for a run; None: wait for a slot.

    - A run that needs Spark takes a free slot with a warm session. If there is none, and a session is about to open,
      the run waits.
    - In all other cases, the run takes any free slot. A slot with a worker is preferred, and then a slot without a warm
      session.
    """
    free = [slot for slot in slots if slot.is_free]
    if needs_spark:
        warm = [slot for slot in free if slot.spark is Spark.WARM]
        if warm:
            return warm[0]
        if is_session_near(slots):
            return None
    free.sort(key=lambda slot: (slot.worker is None, slot.spark is Spark.WARM))
    return free[0] if free else None
