"""Prevents the start of a trigger that promises a weaker delivery guarantee than its watchers demand."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog
from anyio.abc import TaskGroup

from triggerer.domain.watchers.guarantees import Guarantee
from triggerer.errors import PluginError
from triggerer.hosting.class_loader import ClassLoad, ClassLoader, Loaded
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.streams.cancellation import plugin_code, take_back_stray_cancellations
from triggerer.streams.supervision.promised_guarantee import (
    ASKING_TIMEOUT,
    promised_guarantee_of,
    too_weak,
)

_log = structlog.get_logger(__name__)

_PATIENCE: Final = 2 * ASKING_TIMEOUT
"""`describe_delivery` is cancelled after `ASKING_TIMEOUT`. It has the rest of this time to end."""


class GuaranteeCheck:
    """Loads classes like a `ClassLoader`. A load fails if the trigger's guarantee is weaker than its watchers demand.

    If a check takes longer than `patience`, the load fails, too. The trigger is not checked again until the check has
    ended.

    Args:
        tasks: Runs the checks. They end with this task group.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        loader: ClassLoader,
        *,
        ack_timeout: timedelta,
        patience: timedelta = _PATIENCE,
    ) -> None:
        self._tasks = tasks
        self._loader = loader
        self._ack_timeout = ack_timeout
        self._patience = patience
        self._unended: dict[int, ClassLoad] = {}
        """By trigger id. A trigger with other arguments, or with another guarantee, has another id."""

    def begin(self, row: TriggerRow, wanted: Guarantee) -> ClassLoad:
        """Begin to load the class of the row's trigger. Afterwards, check the trigger's delivery guarantee.

        The load settles once the class is loaded and the trigger is checked, or once one of these steps has failed or
        has taken too long. If the trigger is already being loaded or checked, return the load that is under way.
        """
        checked = self._unended.get(row.trigger_id)
        if checked is None:
            checked = self._unended[row.trigger_id] = ClassLoad(row.classpath)
            self._tasks.start_soon(self._check, row, wanted, checked)
        return checked

    async def _check(self, row: TriggerRow, wanted: Guarantee, checked: ClassLoad) -> None:
        load = self._loader.begin(row.classpath)
        await load.wait_until_settled()
        seconds = self._patience.total_seconds()
        timer = asyncio.get_running_loop().call_later(seconds, self._give_up, row, checked)
        found: Loaded
        try:
            found = load.result()
            with plugin_code(f"Making {row.display_name}"):
                trigger = found(**row.kwargs)
            promised = await promised_guarantee_of(trigger, ask=True, ack_timeout=self._ack_timeout)
            if promised.is_below(wanted):
                raise too_weak(promised, wanted)
        except Exception as error:  # noqa: BLE001  (raised where the trigger is made)
            found = error
        finally:
            timer.cancel()
        await take_back_stray_cancellations()
        del self._unended[row.trigger_id]
        self._settle(checked, found)

    def _give_up(self, row: TriggerRow, checked: ClassLoad) -> None:
        """Let the load fail. `describe_delivery` still runs, because it has ignored its cancellation."""
        seconds = f"{self._patience.total_seconds():g}"
        _log.error(
            "describe_delivery() of a trigger does not end",
            trigger=row.display_name,
            seconds=seconds,
        )
        error = PluginError(
            f"describe_delivery() of {row.classpath} has not ended within {seconds} s",
            hint="let its CancelledError pass, and give its requests a timeout",
        )
        self._settle(checked, error)

    def _settle(self, checked: ClassLoad, loaded: Loaded) -> None:
        checked.settle(loaded)
        self._loader.settled.notify_all()
