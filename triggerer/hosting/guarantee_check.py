"""Prevents the start of a trigger that promises a weaker delivery guarantee than its watchers demand."""

from __future__ import annotations

from datetime import timedelta

from anyio.abc import TaskGroup

from triggerer.abc import BaseEventTrigger
from triggerer.domain.watchers.guarantees import Guarantee
from triggerer.hosting.class_loader import ClassLoad, ClassLoader
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.streams.cancellation import plugin_code, take_back_stray_cancellations
from triggerer.streams.supervision.promised_guarantee import promised_guarantee_of, too_weak


class GuaranteeCheck:
    """Loads classes like a `ClassLoader`. A load fails if the trigger's guarantee is weaker than its watchers demand.

    Args:
        tasks: Runs the checks. They end with this task group.
    """

    def __init__(self, tasks: TaskGroup, loader: ClassLoader, *, ack_timeout: timedelta) -> None:
        self._tasks = tasks
        self._loader = loader
        self._ack_timeout = ack_timeout

    def begin(self, row: TriggerRow, wanted: Guarantee) -> ClassLoad:
        """Begin to load the class of the row's trigger. Afterwards, check the trigger's delivery guarantee.

        The load settles once the class is loaded and checked, or one of these steps has failed.
        """
        checked = ClassLoad(row.classpath)
        self._tasks.start_soon(self._check, row, wanted, checked)
        return checked

    async def _check(self, row: TriggerRow, wanted: Guarantee, checked: ClassLoad) -> None:
        load = self._loader.begin(row.classpath)
        await load.wait_until_settled()
        found: type[BaseEventTrigger] | Exception
        try:
            found = load.result()
            with plugin_code(f"Making {row.display_name}"):
                trigger = found(**row.kwargs)
            promised = await promised_guarantee_of(trigger, ask=True, ack_timeout=self._ack_timeout)
            if promised.is_below(wanted):
                raise too_weak(promised, wanted)
        except Exception as error:  # noqa: BLE001  (raised where the trigger is made)
            found = error
        await take_back_stray_cancellations()
        checked.settle(found)
        self._loader.settled.notify_all()
