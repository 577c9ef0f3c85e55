"""Ends the tasks that remain of a process that has crashed or was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from triggerer.testing.simulation.kernel.loop import Deadlock, VirtualLoop

if TYPE_CHECKING:
    from triggerer.testing.simulation.checks.checker import Checker
    from triggerer.testing.simulation.kernel.drawn_faults import FaultInjector

_TIMEOUT_S = 600.0
"""A cancelled process must end within this virtual time, in seconds. Shielded work may continue until the
deadline of its shield."""


class Crash(BaseException):
    """The process crashes between two steps."""


class Finished(BaseException):
    """No work is left."""


def unwind(
    kill: Callable[[], None],
    loop: VirtualLoop,
    task: asyncio.Task[None],
    faults: FaultInjector,
    checker: Checker,
) -> None:
    """Cancel the tasks of a process, and wait for them. From now on, the tasks have no effect on the world."""
    kill()
    loop.on_step = None
    were_over, faults.are_over = faults.are_over, True
    task.cancel()
    try:
        if task.done():
            # The task ended in the same turn as the crash, before its callback could stop the loop.
            loop.call_soon(loop.stop)
            loop.run_forever()
        else:
            loop.run_until_complete(asyncio.wait([task], timeout=_TIMEOUT_S))
    except Deadlock:
        pass
    if task.done():
        loop.run_until_complete(loop.shutdown_asyncgens())
    else:
        checker.fail("L1", "the process does not stop when it is cancelled")
    if task.done() and not task.cancelled():
        task.exception()
    loop.close()
    asyncio.set_event_loop(None)
    faults.are_over = were_over
