"""Paces a cleaning: the cleaning sleeps after each transaction, and reports at intervals that it is still alive."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import anyio

_REPORT_EVERY: Final = timedelta(seconds=20)


async def _report_nothing() -> None:
    pass


class Pace:
    """Slows a cleaning down, and reports that the cleaning is alive.

    Call `give_way` after a transaction that wrote, and `step` after a transaction that only read.

    Args:
        report: Called at most every 20 s, between two transactions. If `report` raises an error, the cleaning ends with
        it.
    """

    def __init__(self, report: Callable[[], Awaitable[None]] = _report_nothing) -> None:
        self._report = report
        self._report_due = time.monotonic() + _REPORT_EVERY.total_seconds()

    async def give_way(self, began: float) -> None:
        """Sleep for as long as the last transaction took, so that other writers get a turn. SQLite has one at a time.

        Args:
            began: When the transaction began, on the monotonic clock.
        """
        await anyio.sleep(time.monotonic() - began)
        await self.step()

    async def step(self) -> None:
        """Report that the cleaning is alive, if a report is due."""
        if time.monotonic() >= self._report_due:
            await self._report()
            self._report_due = time.monotonic() + _REPORT_EVERY.total_seconds()
