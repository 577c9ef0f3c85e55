"""Checks whether leases still hold, in the transaction whose writes depend on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from triggerer.domain.events import Fence
from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, in_list, parameter_rows

# These statements and the recorder of events lock rows of the table `stream` in the order of their digests. Otherwise
# two transactions could deadlock.
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
    """Return the fences that hold. Their streams are locked, so that they hold until the transaction ends."""
    rows = yield VALID(rows=ParameterRows(sorted(map(tuple, set(fences)))))
    return frozenset(Fence(*row) for row in rows)


def lock_out_owners(stream_digests: Iterable[str]) -> Script[None]:
    """Lock these streams, so that their owners cannot write for them until the transaction ends.

    The lock is granted once the owner's current writes have committed. So a transaction that moves a watcher to another
    stream sees everything that the owner has written for the watcher. The owner's next write finds the watcher moved.
    """
    yield _LOCK(digests=sorted(stream_digests))
