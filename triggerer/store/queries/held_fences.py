"""Which leases hold, seen in the transaction that writes under them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from triggerer.domain.events import Fence
from triggerer.store.engine.script import Script
from triggerer.store.engine.statement import ParameterRows, Statement, parameter_rows

# Sorted, or two transactions could deadlock: the recorder locks these rows too.
HELD: Final = Statement(
    "SELECT s.digest, s.owner, s.epoch FROM stream s "
    "JOIN {FENCES} f ON s.digest = f.digest AND s.owner = f.owner AND s.epoch = f.epoch "
    "ORDER BY s.digest {LOCK}",
    FENCES=parameter_rows(digest="text", owner="text", epoch="bigint"),
    LOCK=("", "FOR SHARE OF s"),
)


def held_fences(fences: Iterable[Fence]) -> Script[frozenset[Fence]]:
    """Return the fences that hold. They go on to hold until the transaction ends."""
    rows = yield HELD(rows=ParameterRows(sorted(map(tuple, set(fences)))))
    return frozenset(Fence(*row) for row in rows)
