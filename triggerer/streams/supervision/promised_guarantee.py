"""Computes the delivery guarantee that a trigger promises to its watchers, from what `describe_delivery` returns."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import anyio

from triggerer.abc import BaseEventTrigger
from triggerer.domain.watchers.guarantees import Guarantee, PromisedGuarantee, guarantee_of
from triggerer.errors import BrokerUnavailable, DagError
from triggerer.streams.supervision.delivery_facts import facts_of

ASKING_TIMEOUT: Final = timedelta(seconds=5)


async def promised_guarantee_of(
    trigger: BaseEventTrigger,
    *,
    ask: bool,
    ack_timeout: timedelta,
    deadline: timedelta = ASKING_TIMEOUT,
) -> PromisedGuarantee:
    """Return the guarantee that the trigger promises to its watchers, with the reason.

    Args:
        ask: True: the trigger may also ask its source, such as a broker.
    Raises:
        BrokerUnavailable: The source did not answer in time.
        TriggererError: The trigger's error about its settings or its source.
        PluginError: The trigger raised another error, or its facts have wrong types.
    """
    seconds = deadline.total_seconds()
    with anyio.move_on_after(seconds) as scope:
        try:
            facts = await facts_of(trigger, ask=ask)
        except Exception as error:
            # Once the deadline is over, its cancellation may have caused this error. Report the timeout instead.
            if not scope.cancel_called:
                raise
            raise _silent(seconds) from error
        return guarantee_of(facts, ack_timeout=ack_timeout)
    raise _silent(seconds)


def too_weak(promised: PromisedGuarantee, wanted: Guarantee) -> DagError:
    """Return the error of a watcher whose DAG file demands a stronger guarantee than the trigger promises."""
    return DagError(
        f"it asks for {wanted}, and its trigger promises {promised}",
        hint="change what the reason names, or ask for less: docs/explanation/guarantees.md",
    )


def _silent(seconds: float) -> BrokerUnavailable:
    return BrokerUnavailable(f"its source did not answer within {seconds:g} s")
