"""Asks a trigger what its source does, and computes what its watchers promise."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import anyio

from triggerer.abc import BaseEventTrigger
from triggerer.domain.guarantees import Guarantee, Promise, promise
from triggerer.errors import BrokerUnavailable, DagError
from triggerer.runtime.cancellation import plugin_code

ASKING_TIMEOUT: Final = timedelta(seconds=5)


async def promise_of(
    trigger: BaseEventTrigger,
    *,
    ask: bool,
    ack_timeout: timedelta,
    deadline: timedelta = ASKING_TIMEOUT,
) -> Promise:
    """What the watchers of a trigger promise.

    Args:
        ask: Whether its source may be asked.
    Raises:
        BrokerUnavailable: The source did not answer in time.
        Exception: Whatever the trigger raises.
    """
    seconds = deadline.total_seconds()
    with anyio.move_on_after(seconds) as scope:
        try:
            with plugin_code("describe_delivery()"):
                facts = await trigger.describe_delivery(ask=ask)
        except Exception as error:
            # A client may raise anything when it is cancelled.
            if not scope.cancel_called:
                raise
            raise _silent(seconds) from error
        return promise(facts, ack_timeout=ack_timeout)
    raise _silent(seconds)


def too_weak(promised: Promise, wanted: Guarantee) -> DagError:
    """The error of a watcher whose trigger promises less than it asks for."""
    return DagError(
        f"it asks for {wanted}, and its trigger promises {promised}",
        hint="change what the reason names, or ask for less: docs/explanation/guarantees.md",
    )


def _silent(seconds: float) -> BrokerUnavailable:
    return BrokerUnavailable(f"its source did not answer within {seconds:g} s")
