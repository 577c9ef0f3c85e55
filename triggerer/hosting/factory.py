"""Makes triggers of the rows that declare them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from triggerer.abc import BaseEventTrigger
from triggerer.isolation import Isolation, IsolationSettings
from triggerer.store.queries.hosting import TriggerRow

TriggerLoader = Callable[[str], type[BaseEventTrigger]]
"""Turns a class path into the class; may raise whatever the plugin's module raises."""


class TriggerFactory:
    """Loads a trigger's class, has it run where the settings place it, and gives it its arguments.

    What isolated triggers need beside them runs for as long as the `async with` block lasts: the triggers end first.
    """

    def __init__(
        self, load_class: TriggerLoader, isolation: IsolationSettings | None = None
    ) -> None:
        self._load_class = load_class
        self._isolation = Isolation(isolation or IsolationSettings())

    async def __aenter__(self) -> Self:
        await self._isolation.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._isolation.__aexit__(kind, error, trace)

    def prepare(self, row: TriggerRow) -> Callable[[], BaseEventTrigger]:
        """What makes the row's trigger, anew at each call; it raises whatever the plugin's code raises."""
        placement = self._isolation.placement_of(row.classpath, row.watcher_names)

        def make() -> BaseEventTrigger:
            cls = self._load_class(row.classpath)
            if placement is not None:
                cls = self._isolation.proxy_class(
                    cls, placement, classpath=row.classpath, name=row.display_name
                )
            return cls(**row.kwargs)

        return make
