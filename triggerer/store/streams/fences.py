"""Which leases hold, seen in the transaction that writes under them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from triggerer.domain.events import Fence
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, in_list, parameter_rows

# Sorted, or two transactions could deadlock: the recorder locks these rows too.
HELD: Final = Statement(
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


def held_fences(fences: Iterable[Fence]) -> Script[frozenset[Fence]]:
    """Return the fences that hold. They go on to hold until the transaction ends."""
    rows = yield HELD(rows=ParameterRows(sorted(map(tuple, set(fences)))))
    return frozenset(Fence(*row) for row in rows)


def lock_out_owners(stream_digests: Iterable[str]) -> Script[None]:
    """Wait for what the owners of these streams are writing; what they write next waits until the transaction ends.

    Whoever moves a watcher sees so what was written for it before, and its owner for what comes later where it is now.
    """
    yield _LOCK(digests=sorted(stream_digests))
