"""Reports finished lanes during a call of `advance_lanes`, so that they need not wait for slower lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from triggerer.abc import ReportAdvanced

_EVERY_S: Final = 0.1
"""The time between two reports. Most calls of `advance_lanes` return sooner, and need no report. If reports came more
often, each would release only a few lanes, and the next requests to the broker would be smaller."""


@contextmanager
def reporting(report: ReportAdvanced, take_done: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Report finished lanes every 100 ms while the block runs.

    Args:
        report: The `report` that `advance_lanes` received.
        take_done: Returns the indices of the batches that have finished since the previous call of `take_done`. Called
            on the event loop.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def report_later() -> None:
        nonlocal timer
        timer = loop.call_later(_EVERY_S, report_finished)

    def report_finished() -> None:
        report_later()
        finished = take_done()
        if finished:
            report(finished)

    report_later()
    try:
        yield
    finally:
        timer.cancel()
