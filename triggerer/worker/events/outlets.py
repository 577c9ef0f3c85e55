"""The events that a task emits: `outlet_events`, and the events that result when the task succeeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from triggerer.domain.assets import Asset, AssetAlias, Metadata
from triggerer.domain.attempts import EmittedEvent
from triggerer.domain.text.json_text import dump_json, load_json
from triggerer.domain.text.storable import check_partition_key
from triggerer.errors import RowRefused


class OutletEvent:
    """The values that a task sets for the event of one outlet."""

    __slots__ = ("_added", "extra", "outlet", "partition_key")

    def __init__(self, outlet: Asset | AssetAlias, *, partition_key: str | None = None) -> None:
        self.outlet = outlet
        self.extra: dict[str, Any] = {}
        """The event's `extra`, if the outlet is an asset. For an alias, `add` takes the `extra` of each event."""
        self.partition_key = partition_key
        """The partition key of the outlet's events. At first, this is the run's key. None: no key."""
        self._added: dict[Hashable, tuple[Asset, dict[str, Any]]] = {}

    def add(self, asset: Asset, extra: Mapping[str, Any] | None = None) -> None:
        """Attach an event of `asset` to this alias.

        Adding an asset again with an equal extra changes nothing.
        """
        if not isinstance(self.outlet, AssetAlias):
            raise TypeError(f"{self.outlet!r} is no alias: set .extra, or yield Metadata")
        entry = (asset, dict(extra or {}))
        self._added.setdefault((asset, _digest(entry[1])), entry)

    @property
    def added(self) -> Collection[tuple[Asset, dict[str, Any]]]:
        return self._added.values()


class OutletEvents(Mapping[Asset | AssetAlias, OutletEvent]):
    """The argument `outlet_events`: an `OutletEvent` for each declared outlet. Index it by the outlet, its name or URI.

    Args:
        partition_key: The run's partition key. As in Airflow, an event gets this key unless the task sets another.
    """

    def __init__(
        self, outlets: Sequence[Asset | AssetAlias], *, partition_key: str | None = None
    ) -> None:
        self._entries = {one: OutletEvent(one, partition_key=partition_key) for one in outlets}

    def __getitem__(self, key: Asset | AssetAlias | str) -> OutletEvent:
        for outlet, entry in self._entries.items():
            names = (outlet.name, outlet.uri) if isinstance(outlet, Asset) else (outlet.name,)
            if outlet == key or key in names:
                return entry
        raise KeyError(f"{key!r} is not among the task's outlets")

    def __iter__(self) -> Iterator[Asset | AssetAlias]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, metadata: Metadata) -> None:
        """Merge the `extra` into the asset's entry. If an alias is named, add an event to the alias instead."""
        if metadata.alias is not None:
            self[metadata.alias].add(metadata.asset, metadata.extra)
        else:
            self[metadata.asset].extra.update(metadata.extra or {})

    def emitted(self) -> tuple[EmittedEvent, ...]:
        """Return a successful task's events: one for each asset outlet, and each event that the task added to an alias.

        As in Airflow, events of one asset with equal `extra` and partition key become one event. This event belongs to
        all aliases to which the task added it.

        Raises:
            RowRefused: An extra or a partition key cannot be stored.
        """
        found: list[_Found] = []
        by_content: dict[Hashable, _Found] = {}
        for outlet, entry in self._entries.items():
            if isinstance(outlet, Asset):
                one = _Found(outlet, checked(outlet, entry.extra), entry.partition_key)
                by_content.setdefault(one.content, one)
                found.append(one)
        for outlet, entry in self._entries.items():
            for asset, extra in entry.added:
                one = _Found(asset, checked(asset, extra), entry.partition_key)
                if (known := by_content.setdefault(one.content, one)) is one:
                    found.append(one)
                known.aliases.append(outlet.name)
        counts: Counter[Asset] = Counter()
        events = []
        for one in found:
            asset, key = one.asset, one.partition_key
            if key is not None:
                check_partition_key(key)
            events.append(
                EmittedEvent(
                    asset.name, asset.uri, one.extra, counts[asset], tuple(one.aliases), key
                )
            )
            counts[asset] += 1
        return tuple(events)


@dataclass(frozen=True, slots=True)
class _Found:
    """An event that a task emits, and the aliases that name it."""

    asset: Asset
    extra: dict[str, Any]
    partition_key: str | None
    aliases: list[str] = field(default_factory=list)

    @property
    def content(self) -> Hashable:
        return self.asset, _digest(self.extra), self.partition_key


def _digest(extra: Mapping[str, Any]) -> Hashable:
    """Return a value that is equal for equal extras. The value of an extra that is not JSON equals no other value."""
    try:
        return dump_json(extra, "an extra", option=orjson.OPT_SORT_KEYS)
    except RowRefused:
        return object()


def checked(asset: Asset, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `extra`, with the types and values that the store will return.

    Raises:
        RowRefused: `extra` is no mapping, or has a value that JSON or the store cannot represent, such as NaN or a NUL.
    """
    if not isinstance(extra, Mapping):
        raise RowRefused(f"the extra of {asset.uri} is no mapping: {extra!r}")
    copy: dict[str, Any] = load_json(dump_json(dict(extra), f"the extra of {asset.uri}"))
    return copy
