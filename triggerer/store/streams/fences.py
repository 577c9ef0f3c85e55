"""Checks which leases hold, in the transaction that writes under them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from triggerer.domain.events import Fence
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, in_list, parameter_rows

# Sorted, because the recorder locks these rows too, and two transactions could deadlock.
VALID: Final = Statement(
    "SELECT s.digest, s.owner, s.epoch FROM stream s "
    "JOIN {FENCES} f ON s.digest = f.digest AND s.owner = f.owner AND s.epoch = f.epoch "
    "ORDER BY s.digest {LOCK}",
    FENCES=parameter_rows(digest="text", owner="text", epoch="bigint"),
    LOCK=("", "FOR SHARE OF s"),
)
_LOCK: Final = Statement(
    "SELECT digest FROM stream WHERE digest {DIGESTS} ORDER BY digest {LOCK}",
    DIGESTS=in_list("digests", "text"),
    LOCK=("", "FOR NO KEY UPDATE"),
)


def valid_fences(fences: Iterable[Fence]) -> Script[frozenset[Fence]]:
    """Return the fences that hold. They hold until the transaction ends."""
    rows = yield VALID(rows=ParameterRows(sorted(map(tuple, set(fences)))))
    return frozenset(Fence(*row) for row in rows)


def lock_out_owners(stream_digests: Iterable[str]) -> Script[None]:
    """Wait for the owners' current writes to these streams, and delay their next ones until the transaction ends.

    A transaction that moves a watcher thus sees everything written for it so far. Later, its owner sees the move.
    """
    yield _LOCK(digests=sorted(stream_digests))
