"""Assigns events to the runs of partition keys, and decides when a run may start. No clock, no database.

An event can belong to the runs of several keys, and has one share in each of them. With a roll-up, one run waits for
several event keys, called parts. For example, the run of a day waits for 24 hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from triggerer.domain.assets import AssetAlias
from triggerer.domain.conditions import Condition, Leaf, is_satisfied, leaves_of
from triggerer.domain.partitions.base import PartitionMapper, downstream_keys
from triggerer.domain.partitions.rolling_up import Progress, RollupMapper
from triggerer.domain.text.storable import check_partition_key
from triggerer.errors import DagError, RowRefused

_COMPUTING: Final = (DagError, RowRefused, ValueError, ArithmeticError)
"""The errors that a mapper may raise for an unexpected key, such as a year out of range."""


@dataclass(frozen=True, slots=True)
class KeyedEvent:
    """An asset event that waits for a DAG."""

    id: int
    asset_id: int
    asset_name: str
    asset_uri: str
    key: str | None
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class Share:
    """One event that waits for the run of one partition key. An event for several keys has a share in each key."""

    partition_key: str
    event: KeyedEvent
    part: str
    """For a roll-up: the event's partition key, which is one of the keys that the run waits for. Otherwise empty."""


@dataclass(frozen=True, slots=True)
class Division:
    """The shares of some events. Events in neither `divided` nor `refused` were not examined."""

    shares: tuple[Share, ...] = ()
    divided: tuple[int, ...] = ()
    """The ids of the events that have shares."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """The reason why an event is for no run, by event id."""


@dataclass(frozen=True, slots=True)
class Part:
    """An event key that has arrived for the run of a partition key."""

    asset_id: int
    asset_name: str
    asset_uri: str
    part: str
    first_at: datetime
    """The instant of the part's first event."""
    aliases: frozenset[str] = frozenset()
    """The names of the DAG's aliases that resolve to the asset."""


@dataclass(frozen=True, slots=True)
class Lack:
    """An asset or alias that keeps the run of a partition key waiting."""

    name: str
    missing: tuple[str, ...] = ()
    """The event keys that have not arrived, in order; empty: one event for the run's key is enough."""
    deadline: datetime | None = None
    """When the run starts without the missing keys; None: the run has no deadline."""
    unreachable: str | None = None
    """Why the run can never start; None: it can start."""


@dataclass(frozen=True, slots=True)
class Partitioner:
    """Assigns waiting events to the runs of partition keys, as a DAG's `PartitionedAssetTimetable` says."""

    condition: Condition
    mappers: Mapping[str, PartitionMapper] = field(hash=False)
    """By asset name, the mappers that replace `default` for single assets."""
    default: PartitionMapper

    def divide(self, events: Iterable[KeyedEvent], *, most: int) -> Division:
        """Return the shares of the first events, at most `most` shares. The shares of one event are never split.

        So if the first event alone has more than `most` shares, all of them are returned.
        """
        shares: list[Share] = []
        divided: list[int] = []
        refused: dict[int, str] = {}
        for event in events:
            try:
                found = self._shares(event)
            except _COMPUTING as error:
                refused[event.id] = str(error)
                continue
            if divided and len(shares) + len(found) > most:
                break
            shares += found
            divided.append(event.id)
        return Division(tuple(shares), tuple(divided), refused)

    def due_at(
        self, key: str, parts: Sequence[Part], *, has_run: bool, now: datetime
    ) -> datetime | None:
        """Return when the run of a key may start with these parts; None: the run needs another event first.

        Args:
            has_run: True if the key already had a run. Then one further part is enough for another run, which may start
                at once.
            now: The present instant, which is the result if the run may start at once.
        """
        try:
            moments = [now, *sorted(at for at in self._deadlines(key, parts) if at > now)]
            return next((at for at in moments if self._may_start(key, parts, has_run, at)), None)
        except _COMPUTING:
            return None

    def lacks(self, key: str, parts: Sequence[Part], *, now: datetime) -> tuple[Lack, ...]:
        """Return the assets and aliases that the first run of a key still waits for."""
        found = []
        for leaf in dict.fromkeys(leaves_of(self.condition)):
            try:
                if not self._has(leaf, key, parts, now):
                    found.append(self._lack(leaf, key, parts, now))
            except _COMPUTING as error:
                # The leaf's roll-up cannot list the parts of this key. Either its window does not fit its mapper, or
                # another asset's mapper has made the key.
                found.append(Lack(leaf.name, unreachable=str(error)))
        return tuple(found)

    def _shares(self, event: KeyedEvent) -> list[Share]:
        if event.key is None:
            raise DagError("the event has no partition key")
        mapper = self._mapper(event.asset_name)
        part = mapper.canonical_upstream(event.key) if isinstance(mapper, RollupMapper) else ""
        keys = downstream_keys(mapper, event.key)
        for key in keys:
            check_partition_key(key)
        return [Share(key, event, part) for key in keys]

    def _mapper(self, asset_name: str) -> PartitionMapper:
        return self.mappers.get(asset_name, self.default)

    def _may_start(self, key: str, parts: Sequence[Part], has_run: bool, at: datetime) -> bool:
        if has_run:
            return any(_of(leaf, parts) for leaf in leaves_of(self.condition))
        return is_satisfied(self.condition, lambda leaf: self._has(leaf, key, parts, at))

    def _has(self, leaf: Leaf, key: str, parts: Sequence[Part], at: datetime) -> bool:
        return any(
            progress is None or progress.is_satisfied
            for progress in self._progress(key, _of(leaf, parts), at)
        )

    def _progress(self, key: str, parts: Sequence[Part], at: datetime) -> Iterator[Progress | None]:
        """Yield, for each asset in `parts`, the progress of its roll-up, or None if the asset has no roll-up."""
        for asset_name in dict.fromkeys(part.asset_name for part in parts):
            mapper = self._mapper(asset_name)
            if not isinstance(mapper, RollupMapper):
                yield None
                continue
            ours = [part for part in parts if part.asset_name == asset_name]
            yield mapper.progress(
                key,
                [part.part for part in ours],
                now=at,
                first_event_at=min(part.first_at for part in ours),
            )

    def _deadlines(self, key: str, parts: Sequence[Part]) -> Iterator[datetime]:
        for asset_name in dict.fromkeys(part.asset_name for part in parts):
            mapper = self._mapper(asset_name)
            if isinstance(mapper, RollupMapper):
                first = min(part.first_at for part in parts if part.asset_name == asset_name)
                at = mapper.deadline(key, first_event_at=first)
                if at is not None:
                    yield at

    def _lack(self, leaf: Leaf, key: str, parts: Sequence[Part], now: datetime) -> Lack:
        ours = _of(leaf, parts)
        for progress in self._progress(key, ours, now):
            assert progress is not None
            missing = tuple(sorted(progress.missing))
            return Lack(leaf.name, missing, progress.deadline, progress.unreachable)
        mapper = self._mapper(leaf.name)
        if isinstance(leaf, AssetAlias) or not isinstance(mapper, RollupMapper):
            return Lack(leaf.name)
        progress = mapper.progress(key, (), now=now, first_event_at=now)
        return Lack(leaf.name, tuple(sorted(progress.missing)), unreachable=progress.unreachable)


def _of(leaf: Leaf, parts: Sequence[Part]) -> list[Part]:
    if isinstance(leaf, AssetAlias):
        return [part for part in parts if leaf.name in part.aliases]
    return [part for part in parts if (part.asset_name, part.asset_uri) == (leaf.name, leaf.uri)]
