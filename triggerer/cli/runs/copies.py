"""Prints the copy of a run's log from the bucket of `[logs] ship`, for a run whose log is not on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from triggerer.operations.reading.shipped_logs import open_copy

if TYPE_CHECKING:
    from triggerer.store.listing.views import RunView


async def print_copy(ship: str, row: RunView, out: BinaryIO) -> bool:
    """Write the copy of a run's log to `out`; return whether a copy exists.

    Args:
        ship: The setting `[logs] ship`.
    Raises:
        ConfigurationError: The SDK of the bucket is not installed.
        BucketError: The bucket refuses, or does not answer.
    """
    async with open_copy(ship, row) as copy:
        if copy is None or await copy.read(0, 1) is None:
            return False
        async for part in copy.read_all():
            out.write(part)
    out.flush()
    return True
