"""Errors that users' own filters raise. The simulation must not report them as broken promises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SPOILT_BY_FILTERS: Final = frozenset({"L1", "L2", "L3", "L5", "L6"})
"""Rules which promise that something happens in the end.

A filter that raises for ever stops its lane, and so breaks these rules without any fault of the product.
"""


@dataclass(frozen=True, slots=True)
class FailingFilter:
    """A watcher whose filter raised an error.

    `given` counts the distinct messages that the filter got. `raised` counts the messages on which the filter raised.
    """

    watcher: str
    error: str
    """The last error, as the filter raised it."""
    raised: int
    given: int

    @property
    def is_hopeless(self) -> bool:
        """True if the filter passed no message at all."""
        return self.raised == self.given

    def joined(self, other: FailingFilter) -> FailingFilter:
        """Return the counts of two seeds together."""
        given = self.given + other.given
        return FailingFilter(self.watcher, other.error, self.raised + other.raised, given)

    def __str__(self) -> str:
        of = f"each of {self.given}" if self.is_hopeless else f"{self.raised} of {self.given}"
        messages = "message" if self.given == 1 else "messages"
        return f"the filter of watcher {self.watcher} raised {self.error} on {of} {messages}"


def join(found: Iterable[FailingFilter]) -> dict[str, FailingFilter]:
    """Return the failing filters by watcher, with the counts of all seeds added up."""
    joined: dict[str, FailingFilter] = {}
    for one in found:
        known = joined.get(one.watcher)
        joined[one.watcher] = one if known is None else known.joined(one)
    return joined


def may_explain(rule: str) -> bool:
    """Return whether a filter that raises can break this rule while the product keeps it."""
    return rule in _SPOILT_BY_FILTERS


class FilterErrors:
    """Records which messages each watcher's filter got, and on which of these messages the filter raised."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        """By watcher id, the watcher's name in its file.

        The simulation's own watchers have no name, and are not counted.
        """
        self._given: dict[str, set[str]] = {}
        self._raised: dict[str, dict[str, str]] = {}

    def mark_given(self, watchers: Iterable[int], message: str) -> None:
        """Count a message that the filter of these watchers receives."""
        for name in self._named(watchers):
            self._given.setdefault(name, set()).add(message)

    def mark_raised(self, watchers: Iterable[int], message: str, error: Exception) -> None:
        """Count an error that the filter raised while it had the message open."""
        for name in self._named(watchers):
            self._raised.setdefault(name, {})[message] = f"{type(error).__name__}: {error}"

    def failing(self) -> tuple[FailingFilter, ...]:
        """Return the watchers whose filters raised, by name."""
        return tuple(
            FailingFilter(name, list(raised.values())[-1], len(raised), len(self._given[name]))
            for name, raised in sorted(self._raised.items())
        )

    def _named(self, watchers: Iterable[int]) -> list[str]:
        return [self.names[watcher] for watcher in watchers if watcher in self.names]
