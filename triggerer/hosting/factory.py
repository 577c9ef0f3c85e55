"""Makes triggers from their rows in the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

import anyio

from triggerer.abc import BaseEventTrigger
from triggerer.domain.watchers.guarantees import Guarantee
from triggerer.hosting.class_loader import ClassLoad, ClassLoader, StartLoad, TriggerLoader
from triggerer.hosting.guarantee_check import GuaranteeCheck
from triggerer.isolation import Isolation, IsolationSettings, Placement
from triggerer.store.watchers.hosting import TriggerRow

LOAD_TIMEOUT: Final = timedelta(seconds=30)


class TriggerFactory:
    """Loads the classes of triggers and makes triggers: on the event loop, or isolated in a thread or process.

    The caller must end all triggers before it leaves the `async with` block. The end of the block ends the threads and
    processes of isolated triggers.

    Args:
        load_class: Turns a class path into the class. Called in a thread.
        load_timeout: If a trigger's class takes longer than this to load, the stream opens without the trigger.
        ack_timeout: How long a watcher may need for a message. The delivery guarantee that a trigger can promise
            depends on this time.
        start_load: Starts a load. None: start it in a thread.
    """

    def __init__(
        self,
        load_class: TriggerLoader,
        isolation: IsolationSettings | None = None,
        *,
        load_timeout: timedelta = LOAD_TIMEOUT,
        ack_timeout: timedelta = timedelta(minutes=5),
        start_load: StartLoad | None = None,
    ) -> None:
        self.loader: Final = ClassLoader(load_class, patience=load_timeout, start=start_load)
        self._isolation = Isolation(isolation or IsolationSettings())
        self._ack_timeout = ack_timeout
        self._guarantee_check: GuaranteeCheck | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._isolation)
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        self._guarantee_check = GuaranteeCheck(tasks, self.loader, ack_timeout=self._ack_timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def prepare(self, row: TriggerRow) -> PreparedTrigger:
        """Begin to load the class of the row's trigger."""
        return PreparedTrigger(row, self.begin_load, self._isolation)

    def begin_load(self, row: TriggerRow) -> ClassLoad:
        """Begin to load the class of the row's trigger, and to check its delivery guarantee if the row demands one."""
        if row.guarantee is None:
            return self.loader.begin(row.classpath)
        assert self._guarantee_check is not None, "enter the factory first"
        return self._guarantee_check.begin(row, Guarantee(row.guarantee))


class PreparedTrigger:
    """A callable that makes the trigger of one row. Each call returns a new trigger.

    The file of the class may have changed since the last call. So before each further call, call `load` and wait until
    the load has ended.

    Several callers may share this object. While a load that one caller began is under way, the calls of the others do
    not wait. They use the class from the last load that has ended.
    """

    def __init__(
        self, row: TriggerRow, begin: Callable[[TriggerRow], ClassLoad], isolation: Isolation
    ) -> None:
        self.row: Final = row
        self._begin = begin
        self._isolation = isolation
        self._placement: Placement | None = isolation.placement_of(row.classpath, row.watcher_names)
        self.class_load: ClassLoad = begin(row)
        """The load that was begun last."""
        self._load_before: ClassLoad = self.class_load
        """The last load that had ended before `class_load` began. Initially `class_load` itself."""

    def load(self) -> ClassLoad:
        """Begin to load the class again, or return the load that is under way.

        If the load fails, the next call of this object raises the load's error.
        """
        if self.class_load.is_settled:
            self._load_before = self.class_load
            self.class_load = self._begin(self.row)
        return self.class_load

    def loaded_class(self) -> type[BaseEventTrigger]:
        """Return the class from the last load that has ended.

        Raises:
            PluginError: No load has ended yet.
            Exception: The error of that load.
        """
        load = self.class_load if self.class_load.is_settled else self._load_before
        return load.result()

    def __call__(self) -> BaseEventTrigger:
        """Make the trigger.

        Raises:
            Exception: The class could not be loaded, or the plugin's code raised this error.
        """
        row = self.row
        cls = self.loaded_class()
        if self._placement is not None:
            cls = self._isolation.proxy_class(
                cls, self._placement, classpath=row.classpath, name=row.display_name
            )
        return cls(**row.kwargs)
