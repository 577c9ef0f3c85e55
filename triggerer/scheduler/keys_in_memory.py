"""The waiting events of a partitioned DAG, by partition key, in memory.

`triggerer plan` uses this module to try a new schedule: on recorded events, and on the events that wait now.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import aliases_of
from triggerer.domain.partitions.dividing import KeyedEvent, Part, Partitioner, Share
from triggerer.scheduler.dividing import begun_by, key_record, newest_at, queue_at
from triggerer.scheduler.explaining_partitions import NO_PAST, KeyedPast
from triggerer.scheduler.looks import PartitionQueue
from triggerer.store.partitions.keys import KnownKey


@dataclass(slots=True)
class _Key:
    events: list[int] = field(default_factory=list)
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    runs: int = 0
    due_at: datetime | None = None
    newest_at: datetime | None = None

    @property
    def known(self) -> KnownKey | None:
        if self.newest_at is None:
            return None
        return KnownKey(self.runs, self.due_at, self.newest_at)


@dataclass(slots=True)
class KeysInMemory:
    """The events that wait for the keys of one DAG, as the scheduler would store them.

    Args:
        members: The assets that each alias resolves to.
    """

    partitioner: Partitioner
    quiet_period: timedelta | None
    members: Mapping[str, frozenset[Asset]]
    _keys: dict[str, _Key] = field(default_factory=dict)

    def add(
        self, events: Sequence[KeyedEvent], now: datetime, *, past: KeyedPast = NO_PAST
    ) -> None:
        """Divide events that one look of the scheduler would find.

        Args:
            past: Says which shares a run uses already. `add` skips these shares.
        """
        touched: dict[str, list[Share]] = {}
        division = self.partitioner.divide(events, most=sys.maxsize)
        for share in past.without_used(division.shares):
            touched.setdefault(share.partition_key, []).append(share)
        for name, shares in touched.items():
            key = self._keys.setdefault(name, _Key())
            for share in shares:
                key.events.append(share.event.id)
                key.parts.setdefault((share.event.asset_name, share.part), self._part(share))
            newest = newest_at(now, (share.event.timestamp for share in shares))
            parts = begun_by(now, key.parts.values())
            key.parts = dict(zip(key.parts, parts, strict=True))
            record = key_record(
                self.partitioner,
                name,
                parts,
                newest,
                key.known,
                now=now,
                quiet_period=self.quiet_period,
            )
            key.due_at, key.newest_at = record.due_at, record.newest_at

    def record_run(self, name: str, at: datetime) -> None:
        """Record that the key had a run at the instant `at`."""
        key = self._keys.setdefault(name, _Key(newest_at=at))
        key.runs += 1

    def restart_deadlines(self, now: datetime) -> None:
        """After the clock was set back, count all deadlines from `now`, and end all quiet periods under way."""
        for name, key in self._keys.items():
            key.parts = {one: replace(part, first_at=now) for one, part in key.parts.items()}
            if key.due_at is not None:
                key.due_at = self.partitioner.due_at(
                    name, list(key.parts.values()), has_run=key.runs > 0, now=now
                )

    def queue(self, now: datetime) -> PartitionQueue:
        """Return the queue that a snapshot for `decide.look` needs."""
        due = [(key.due_at, name) for name, key in self._keys.items() if key.due_at is not None]
        return queue_at(now, [(name, at) for at, name in sorted(due)])

    def take(self, name: str) -> tuple[int, ...]:
        """Give all events of a key to a run; return their ids."""
        key = self._keys[name]
        taken = tuple(sorted(key.events))
        key.events, key.parts, key.due_at = [], {}, None
        key.runs += 1
        return taken

    def waiting(self) -> tuple[int, ...]:
        """Return the ids of the events that wait for any key, each once."""
        return tuple(sorted({event for key in self._keys.values() for event in key.events}))

    def _part(self, share: Share) -> Part:
        event = share.event
        asset = Asset.identified(event.asset_name, event.asset_uri)
        names = (alias.name for alias in aliases_of(self.partitioner.condition))
        aliases = frozenset(name for name in names if asset in self.members.get(name, ()))
        return Part(
            event.asset_id, event.asset_name, event.asset_uri, share.part, event.timestamp, aliases
        )
