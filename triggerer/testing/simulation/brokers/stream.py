"""A stream key of the simulated world, with its watchers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triggerer.abc import BaseEventTrigger
    from triggerer.domain.events import WatcherRef
    from triggerer.store.watchers.hosting import TriggerRow
    from triggerer.testing.simulation.brokers.broker import Broker


@dataclass(frozen=True, slots=True)
class WatcherTemplate:
    """The class and arguments of watchers that can be declared for a stream."""

    cls: type[BaseEventTrigger]
    kwargs: dict[str, Any]
    asset_id: int | None = None
    """The watcher's asset, or None if it may be any asset."""
    name: str | None = None
    """The watcher's name in the user's file, or None for a watcher of the simulation itself."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A watcher as a DAG file declares it."""

    ref: WatcherRef
    cls: type[BaseEventTrigger]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Stream:
    """A stream key, its broker, and its watchers."""

    key: str
    broker: Broker
    templates: tuple[WatcherTemplate, ...]
    next_event: Callable[[int, int, int], Any]
    """Makes the raw event of a message from its number, its lane, and its offset there."""
    watchers: dict[int, TriggerRow] = field(default_factory=dict)
    """The trigger row of each stored watcher, by watcher id."""

    @property
    def triggers(self) -> dict[int, TriggerRow]:
        """The trigger rows by trigger id. A trigger can serve several watchers."""
        return {row.trigger_id: row for row in self.watchers.values()}
