"""Planted bugs in the scheduling by partition keys, and in expressions.

Each bug has a seed. The random plays (`partition_plays`) of this seed find the bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tests.simulation.mutations.registry import Mutation, Register, Replacements, register_in
from triggerer.domain import conditions
from triggerer.domain.conditions import Condition, _Group
from triggerer.domain.partitions import PartitionMapper
from triggerer.domain.partitions.dividing import Part, Partitioner
from triggerer.scheduler import dividing
from triggerer.store.dags.snapshots import DagRow
from triggerer.store.database.script import Script
from triggerer.store.partitions import keys as partitions
from triggerer.store.partitions.keys import KeyRecord, KnownKey

BUGS: dict[str, Mutation] = {}
"""By name, the bugs that the plays of a seed find."""


def _found_by_plays(*, seed: int, quick: bool = False) -> Register:
    return register_in(BUGS, rules="", seed=seed, quick=quick)


def _nothing(*_: Any, **__: Any) -> Script[None]:
    yield from ()


@_found_by_plays(seed=8, quick=True)
def a_deadline_counts_from_before_the_clock_was_set_back() -> Replacements:
    """A deadline counts from the instant of the first event, even if the clock was set back to before this instant."""

    def begun_by(now: datetime, parts: Sequence[Part]) -> list[Part]:
        return list(parts)

    yield dividing.begun_by, begun_by
    yield partitions.begin_parts, _nothing


@_found_by_plays(seed=0, quick=True)
def a_key_loses_its_place() -> Replacements:
    """A due key that waits for its run moves behind the other due keys when it gets another event."""
    right = dividing.key_record

    def key_record(
        partitioner: Partitioner,
        key: str,
        parts: Sequence[Part],
        newest_at: datetime,
        known: KnownKey | None,
        **options: Any,
    ) -> KeyRecord:
        noted = right(partitioner, key, parts, newest_at, known, **options)
        if known is None or known.due_at is None or noted.due_at != known.due_at:
            return noted
        return right(partitioner, key, parts, newest_at, replace(known, due_at=None), **options)

    yield right, key_record


@_found_by_plays(seed=1, quick=True)
def a_nested_expression_is_read_as_a_flat_one() -> Replacements:
    """The brackets in an expression count for nothing."""
    right = _Group.__init__

    def init(self: _Group, *objects: Any) -> None:
        flat: list[Condition] = []
        for one in objects:
            flat += one.objects if isinstance(one, _Group) else (one,)
        right(self, *flat)

    yield right, init


@_found_by_plays(seed=0, quick=True)
def a_run_takes_what_the_run_before_took() -> Replacements:
    """A key's next run also takes the events that its earlier runs have taken."""
    waiting = " AND run_pk IS NULL"
    index = " INDEXED BY ix_dag_partition_event_waiting"
    on_sqlite, on_postgres = partitions.SQLITE_TAKE, partitions._POSTGRES_TAKE
    wrong = tuple(one.replace(waiting, "").replace(index, "") for one in on_sqlite)
    assert wrong != on_sqlite
    assert waiting in on_postgres
    yield partitions, on_sqlite, wrong
    yield partitions, on_postgres, on_postgres.replace(waiting, "")


@_found_by_plays(seed=0, quick=True)
def an_alias_is_resolved_to_nothing() -> Replacements:
    """An alias in the expression of a partitioned DAG is never true."""

    def aliases_of(condition: Condition) -> tuple[()]:
        return ()

    yield dividing, conditions.aliases_of, aliases_of


@_found_by_plays(seed=0, quick=True)
def each_asset_has_the_mapper_of_the_others() -> Replacements:
    """All assets have the default mapper."""

    def mapper(self: Partitioner, asset_name: str) -> PartitionMapper:
        return self.default

    yield Partitioner._mapper, mapper


@_found_by_plays(seed=0, quick=True)
def keys_wait_until_the_clock_has_caught_up() -> Replacements:
    """The clock was set back, and the due instants of keys are not computed again."""

    def note_again(row: DagRow, partitioner: Partitioner) -> Script[int]:
        yield from ()
        return 0

    yield dividing._recompute_outdated, note_again
