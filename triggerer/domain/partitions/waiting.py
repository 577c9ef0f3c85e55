"""Policies that say how long a roll-up waits. In a roll-up, one run waits for several event keys, called parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from triggerer.domain.timetables.delta.durations import checked_duration
from triggerer.errors import DagError


@dataclass(frozen=True, slots=True)
class WaitPolicy(ABC):
    """Decides when the run of a roll-up may start."""

    @abstractmethod
    def is_satisfied(self, matched: int, expected: int, *, is_overdue: bool) -> bool:
        """Return whether the run may start, given that `matched` of `expected` parts have arrived."""

    def is_unreachable(self, expected: int) -> bool:
        """Return whether the run can never start, because the policy demands more than the `expected` parts."""
        return False

    @property
    def patience(self) -> timedelta | None:
        """The time from the end of the run's period until the run is overdue; None: the run is never overdue.

        If the run has no period, the time counts from the run's first event.
        """
        return None

    def serialize(self) -> dict[str, Any]:
        """Return JSON from which `deserialize` makes an equal policy."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """Return the policy that `serialize` wrote."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class WaitForAll(WaitPolicy):
    """Waits for all parts."""

    def is_satisfied(self, matched: int, expected: int, *, is_overdue: bool) -> bool:
        return matched == expected


@dataclass(frozen=True, slots=True)
class MinimumCount(WaitPolicy):
    """Waits for `n` parts. With a negative `n`, such as -2, all parts except two must arrive."""

    n: int

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n == 0:
            raise DagError(f"MinimumCount takes a whole number that is not zero, not {self.n!r}")

    def is_satisfied(self, matched: int, expected: int, *, is_overdue: bool) -> bool:
        return matched >= (self.n if self.n > 0 else max(0, expected + self.n))

    def is_unreachable(self, expected: int) -> bool:
        return self.n > expected

    def serialize(self) -> dict[str, Any]:
        return {"n": self.n}


@dataclass(frozen=True, slots=True)
class WaitUntil(WaitPolicy):
    """Waits for all parts; after `patience`, `minimum` parts are enough.

    `patience` counts from the end of the period. With a `SegmentWindow` there is no period, so `patience` counts from
    the run's first event.
    """

    patience: timedelta
    minimum: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", checked_duration(self.patience, "patience"))
        if type(self.minimum) is not int or self.minimum < 1:
            raise DagError(f"minimum must be a whole number from 1, not {self.minimum!r}")

    def is_satisfied(self, matched: int, expected: int, *, is_overdue: bool) -> bool:
        return matched == expected or (is_overdue and matched >= self.minimum)

    def serialize(self) -> dict[str, Any]:
        return {"patience": self.patience.total_seconds(), "minimum": self.minimum}
