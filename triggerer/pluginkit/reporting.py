"""Tells the runtime of lanes that are advanced while others of the same call are not; see `advance_lanes`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from triggerer.abc import ReportAdvanced

_EVERY_S: Final = 0.1
"""Most calls are over before: what they have done is told by their return, at no cost. Lanes that were told of sooner
would go on one by one, in smaller requests."""


@contextmanager
def reporting(report: ReportAdvanced, take_done: Callable[[], Sequence[int]]) -> Iterator[None]:
    """While the block lasts, report what is done, every 100 ms.

    Args:
        report: What `advance_lanes` was given.
        take_done: Returns the places of the batches that are done, each once; called on the event loop.
    """
    loop = asyncio.get_running_loop()
    next_look: asyncio.TimerHandle

    def look_later() -> None:
        nonlocal next_look
        next_look = loop.call_later(_EVERY_S, look)

    def look() -> None:
        look_later()
        places = take_done()
        if places:
            report(places)

    look_later()
    try:
        yield
    finally:
        next_look.cancel()
