"""Finds the subscribers that want an event, by the values that their selectors name.

A selector's `by` names the value that the selector reads from an event, and its `values` are the wanted values.
Selectors with an equal `by` share one lookup per event. A subscriber sleeps until an event has one of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Protocol

from triggerer.abc import BaseEventTrigger, SharedStreamSelector
from triggerer.errors import PluginError
from triggerer.streams.cancellation import is_interrupt

_NOBODY: Final = ()


class Selecting(Protocol):
    """A subscriber with a selector."""

    def offer(self, seq: int) -> None:
        """Receive the newest event, because the subscriber's selector names it."""


class Selection:
    """The subscribers of one group that have a selector. Synchronous, without I/O of its own."""

    def __init__(self) -> None:
        self.tables: dict[Hashable, _Table] = {}
        """The subscribers' tables, by `SharedStreamSelector.by`. Empty: no subscriber has a selector.

        The attribute is never assigned again, because the poll keeps a reference to this dictionary.
        """
        self._by: dict[Selecting, Hashable] = {}

    def __len__(self) -> int:
        return len(self._by)

    def add(self, subscriber: Selecting, selector: SharedStreamSelector) -> None:
        """From the next broadcast on, offer the subscriber each event that its selector names."""
        table = self.tables.get(selector.by)
        if table is None:
            table = self.tables[selector.by] = _Table(selector.read)
        table.add(subscriber, selector.values)
        self._by[subscriber] = selector.by

    def remove(self, subscriber: Selecting) -> None:
        """Stop offering events to the subscriber. Does nothing if it has no selector."""
        if subscriber not in self._by:
            return
        by = self._by.pop(subscriber)
        table = self.tables[by]
        table.remove(subscriber)
        if not table.members:
            del self.tables[by]

    def offer(self, event: Any, seq: int) -> None:
        """Offer the newest event to the subscribers whose selectors name it."""
        for table in self.tables.values():
            for subscriber in table.find(event):
                subscriber.offer(seq)


class _Table:
    """Maps each value to the subscribers whose selectors want it. A table serves all selectors with an equal `by`."""

    __slots__ = ("_read", "_seekers", "members")

    def __init__(self, read: Callable[[Any], Hashable]) -> None:
        self._read = read
        self._seekers: dict[Hashable, dict[Selecting, None]] = {}
        self.members: dict[Selecting, frozenset[Hashable]] = {}

    def add(self, subscriber: Selecting, values: frozenset[Hashable]) -> None:
        self.members[subscriber] = values
        for value in values:
            self._seekers.setdefault(value, {})[subscriber] = None

    def remove(self, subscriber: Selecting) -> None:
        for value in self.members.pop(subscriber):
            seekers = self._seekers[value]
            del seekers[subscriber]
            if not seekers:
                del self._seekers[value]

    def find(self, event: Any) -> Iterable[Selecting]:
        """Return the subscribers that look for the event's value.

        If the event's value cannot be read, the result is all subscribers, because only their filters can judge the
        event.
        """
        try:
            return self._seekers.get(self._read(event), _NOBODY)
        except BaseException as error:
            if is_interrupt(error):
                raise
            # One trigger's selector failed. Do not raise the error: it would end the poll, which serves all triggers.
            return self.members


def is_wanted(selector: SharedStreamSelector | None, event: Any) -> bool:
    """Return whether a filter with this selector wants an event.

    A filter without a selector (None) wants every event.
    """
    if selector is None:
        return True
    try:
        return selector.read(event) in selector.values
    except BaseException as error:
        if is_interrupt(error):
            raise
        # The value cannot be read, so the filter must judge the event.
        return True


def selector_of(trigger: BaseEventTrigger) -> SharedStreamSelector | None:
    """Return the trigger's selector. None: there is no selector, or `is_selecting` is False for the trigger's class.

    Raises:
        PluginError: `shared_stream_selector` returned neither a selector nor None, the selector's `values` are no
            frozenset, or its `by` is not hashable.
    """
    if not is_selecting(type(trigger)):
        return None
    selector = trigger.shared_stream_selector()
    if selector is not None:
        _check(selector, f"{type(trigger).__qualname__}.shared_stream_selector()")
    return selector


def _check(selector: Any, method: str) -> None:
    """Raise an error for a wrong selector here, where one trigger fails. In the poll, the whole group would end."""
    if not isinstance(selector, SharedStreamSelector):
        raise PluginError(
            f"{method} returned {type(selector).__qualname__}",
            hint="return a SharedStreamSelector, or None",
        )
    if not isinstance(selector.values, frozenset):
        raise PluginError(
            f"the values of {method} are a {type(selector.values).__qualname__}",
            hint="make them a frozenset",
        )
    try:
        hash(selector.by)
    except TypeError as error:
        raise PluginError(
            f"the `by` of {method} is a {type(selector.by).__qualname__}, which is not hashable",
            hint="make it a string, or a tuple of strings",
        ) from error


def is_selecting(cls: type[BaseEventTrigger]) -> bool:
    """Return whether the class's selector was written for its filter.

    If a subclass overrides only the filter, the result is False, because the new filter may want events that the
    inherited selector does not name.
    """
    for one in cls.__mro__:
        if "shared_stream_selector" in vars(one):
            return True
        if "filter_shared_stream" in vars(one):
            break
    return False
