"""The rows of partition keys that one transaction reads and writes (`triggerer.store.partitions.keys`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.schedules import OnPartitions
from triggerer.store.database.statement import BoundStatement, Statement
from triggerer.store.partitions import keys as partitions
from triggerer.testing.simulation.database.partition_rows import NEVER, Partitions

if TYPE_CHECKING:
    from triggerer.store.database.script import Row
    from triggerer.testing.simulation.database.model import Dag, Store


Change = Callable[["Store", Partitions], "list[Row]"]


class PartitionWrites:
    """Collects the changes of a transaction, which `apply` makes durable all at once.

    A statement sees the committed rows and the earlier changes of its own transaction. `apply` performs the changes
    again, because other transactions may have committed rows since then.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[str, Change]] = []

    @property
    def dag_ids(self) -> set[str]:
        """The DAGs with a change."""
        return {dag_id for dag_id, _ in self._changes}

    def perform(self, store: Store, step: PartitionStep) -> list[Row]:
        """Perform a step on partition keys."""
        match step:
            case BoundStatement(statement=statement, values=values) if statement in _READS:
                return _READS[statement](store, self.see(store, values["dag_id"]), **values)
            case BoundStatement(statement=statement, values=values):
                given = {name: value for name, value in values.items() if name != "dag_id"}
                change = partial(_WRITES[statement], **given)
                return self.change(store, values["dag_id"], change)
            case partitions.TakePartition(dag_id=dag_id, partition_key=key, run_pk=run):
                return self.change(store, dag_id, partial(_take, key=key, run=run))
            case partitions.StoreNextKey(dag_id=dag_id):
                return self.change(store, dag_id, _wake)

    def change(self, store: Store, dag_id: str, change: Change) -> list[Row]:
        """Add a change. Return the rows that its statement returns."""
        rows = change(store, self.see(store, dag_id))
        self._changes.append((dag_id, change))
        return rows

    def see(self, store: Store, dag_id: str) -> Partitions:
        """Return a copy of a DAG's rows, as a statement of this transaction sees them."""
        here = store.partitions[dag_id].copy(store.queues[dag_id])
        for one, change in self._changes:
            if one == dag_id:
                change(store, here)
        return here

    def apply(self, store: Store) -> None:
        """Make all changes durable at once."""
        for dag_id, change in self._changes:
            here = store.partitions[dag_id]
            here.queue = store.queues[dag_id]
            change(store, here)


def follow_change(before: Dag, after: Dag, is_resumed: bool) -> Change | None:
    """Return how a DAG's partition keys change after a change of its file or the end of its pause; None: no change."""
    if not isinstance(after.on, OnPartitions):
        return None
    is_remapped = (before.on, before.quiet_period_s) != (after.on, after.quiet_period_s)
    if not (is_remapped or is_resumed):
        return None

    def change(store: Store, here: Partitions) -> list[Row]:
        if is_remapped:
            here.return_to_queue()
        here.next_at = store.now()
        return []

    return change


# The statements


def _undivided(store: Store, here: Partitions, limit: int, dag_id: str) -> list[Row]:
    wanted = store.dags[dag_id].waits_for(store.asset_ids)
    queued = [(store.events[event], event) for event, run in here.queue.items() if run is None]
    waiting = sorted(one for one in queued if one[0] in wanted)
    rows: list[Row] = []
    for asset, event in sorted(waiting[:limit], key=lambda one: one[1]):
        name = _name(store, asset)
        at = store.event_times[event]
        rows.append((event, asset, name, name, store.event_keys.get(event), at))
    return rows


def _name(store: Store, asset_id: int) -> str:
    return next(name for name, number in store.asset_ids.items() if number == asset_id)


def _share(_: Store, here: Partitions, rows: Any) -> list[Row]:
    new = [(key, event) for key, event, _ in rows.rows if (key, event) not in here.shares]
    here.shares.update(dict.fromkeys(new))
    return [*dict.fromkeys(new)]


def _part(_: Store, here: Partitions, rows: Any) -> list[Row]:
    for key, asset, part, at in rows.rows:
        here.parts.setdefault((key, asset, part), at)
    return []


def _take_out(_: Store, here: Partitions, event_ids: list[int]) -> list[Row]:
    here.queue.update(dict.fromkeys(event_ids, partitions.DIVIDED))
    return []


def _drop(_: Store, here: Partitions, event_ids: list[int]) -> list[Row]:
    for event in event_ids:
        here.queue.pop(event, None)
    return []


def _known(_: Store, here: Partitions, keys: list[str], dag_id: str) -> list[Row]:
    return [(key, *here.keys[key]) for key in keys if key in here.keys]


def _parts(store: Store, here: Partitions, keys: list[str], dag_id: str) -> list[Row]:
    return [
        (key, asset, _name(store, asset), _name(store, asset), part, at)
        for (key, asset, part), at in sorted(here.parts.items())
        if key in keys
    ]


def _store_keys(_: Store, here: Partitions, rows: Any) -> list[Row]:
    for key, due, newest, noted in rows.rows:
        runs, *_rest = here.keys.get(key, (0,))
        here.keys[key] = (runs, due, newest)
        if noted is None:
            here.noted.pop(key, None)
        else:
            here.noted[key] = noted
    return []


def _later(_: Store, here: Partitions, soon: datetime, limit: int, dag_id: str) -> list[Row]:
    later = sorted((at, key) for key, at in here.noted.items() if at > soon)
    return [(key,) for _, key in later[:limit]]


def _begin(_: Store, here: Partitions, keys: list[str], soon: datetime, at: datetime) -> list[Row]:
    here.parts.update(
        (one, at) for one, first in here.parts.items() if one[0] in keys and first > soon
    )
    return []


def _due(_: Store, here: Partitions, limit: int, dag_id: str) -> list[Row]:
    due = sorted((at, key) for key, (_, at, _) in here.keys.items() if at < NEVER)
    return [(key, at) for at, key in due[:limit]]


def _take(_: Store, here: Partitions, key: str, run: int) -> list[Row]:
    here.take_all(key, run)
    return []


def _wake(_: Store, here: Partitions) -> list[Row]:
    here.next_at = here.earliest()
    return []


_READS: Final[dict[Statement, Callable[..., list[Row]]]] = {
    partitions.UNDIVIDED: _undivided,
    partitions.KNOWN: _known,
    partitions.PARTS: _parts,
    partitions.DUE: _due,
    partitions.LATER: _later,
}
_WRITES: Final[dict[Statement, Callable[..., list[Row]]]] = {
    partitions.SHARE: _share,
    partitions.PART: _part,
    partitions.TAKE_OUT: _take_out,
    partitions.DROP: _drop,
    partitions.STORE_KEYS: _store_keys,
    partitions.BEGIN: _begin,
}
PARTITIONS: Final = frozenset((*_READS, *_WRITES))
PartitionStep = BoundStatement | partitions.TakePartition | partitions.StoreNextKey
