"""Claims queued runs if some DAG uses a pool (a number of runs that may use a resource at once).

Several executors may claim at the same time. Together they never run more runs of a pool than the pool allows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.pools import QueuedRun, choose, pools_in
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Script
from triggerer.store.database.statement import Statement
from triggerer.store.runs.attempts.claims import claim_these
from triggerer.store.runs.state_conditions import ACTIVE
from triggerer.store.schema.models import Dag, DagRun

# Executors that claim runs with pools take turns under this advisory lock of PostgreSQL. The number is arbitrary, but
# unique in the database.
_LOCK: Final = 0x7472_6967_706F
MOST_LOOKED_AT: Final = 1_000
"""The most queued runs that a claim considers. If all of them wait for pools, later runs wait too, even without a pool.
"""

_QUEUED: Final = Statement(
    """
SELECT r.id, r.pools, r.dag_id, r.run_id FROM dag_run r {HINT}
WHERE r.state = 'queued' AND r.held_until IS NULL AND NOT r.cancel_requested
ORDER BY r.priority DESC, r.id LIMIT {most}
""",
    HINT=("INDEXED BY ix_dag_run_claimable", ""),
)
_RUNNING: Final = Statement(
    """
SELECT r.pools FROM dag_run r {HINT}
WHERE r.state IN ('queued', 'running') AND r.state = 'running' AND r.pools IS NOT NULL
""",
    HINT=("INDEXED BY ix_dag_run_active", ""),
)


@dataclass(frozen=True, slots=True)
class _TakeTurns:
    """A step: keep other executors from claiming runs with pools until the commit. SQLite has one writer anyway."""

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return "SELECT pg_advisory_xact_lock($1::bigint)", (_LOCK,)


@dataclass(frozen=True, slots=True)
class PooledRuns:
    """The input of `triggerer.domain.pools.choose`, which decides which queued runs to claim."""

    queued: list[tuple[QueuedRun, str, str]]
    """The queued runs in the order of execution, each with its DAG id and run id."""
    running: list[frozenset[str]]
    """The names of the pools that each running run occupies."""


def pooled_runs() -> Script[PooledRuns]:
    """Return the queued runs, with or without pools, and the pools of the running runs."""
    running = [pools_in(pools) for (pools,) in (yield _RUNNING())]
    return PooledRuns(
        [
            (QueuedRun(pk, pools_in(pools)), dag_id, run_id)
            for pk, pools, dag_id, run_id in (yield _QUEUED(most=MOST_LOOKED_AT))
        ],
        running,
    )


def claim_with_pools(
    *,
    executor: str,
    limit: int,
    log_home: str,
    slots: Mapping[str, int],
    connect: str | None = None,
) -> Script[list[Row]]:
    """Claim up to `limit` queued runs, with or without pools. `claimed_runs` reads the rows.

    Runs with a higher priority come first, then older runs. A running run occupies a slot of each of its pools.
    `triggerer.domain.pools.choose` explains which runs may overtake others.

    Args:
        slots: The number of slots of each pool, by name.
    """
    # Take the lock in a separate statement. A statement sees only what was committed before it began. So the statements
    # after the lock see the claims of the executors that had the lock before.
    yield _TakeTurns()
    waiting = yield from pooled_runs()
    queued = [run for run, _, _ in waiting.queued]
    chosen = choose(queued, waiting.running, slots, limit=limit)
    if not chosen:
        return []
    return (
        yield claim_these(executor=executor, run_pks=chosen, log_home=log_home, connect=connect)
    )


async def any_run_may_use_pools(session: AsyncSession) -> bool:
    """Return True if a DAG has a pool, or if an unfinished run was created while its DAG had a pool."""
    dag = select(Dag.dag_id).where(Dag.pools.is_not(None)).limit(1)
    if await session.scalar(dag) is not None:
        return True
    run = select(DagRun.id).where(ACTIVE, DagRun.pools.is_not(None)).limit(1)
    return await session.scalar(run) is not None
