"""Prepares the triggers that are about to be hosted: loads their classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio

from triggerer.hosting.class_loader import ClassLoad
from triggerer.hosting.factory import PreparedTrigger, TriggerFactory
from triggerer.store.watchers.hosting import TriggerRow

_SOON_S: Final = 1.0
"""How long `prepare` waits for classes. Most classes are loaded by then."""


class Preparation:
    """Loads the classes of new triggers, and knows which loads have not ended."""

    def __init__(self, factory: TriggerFactory) -> None:
        self._factory = factory
        self._prepared: dict[tuple[int, str], PreparedTrigger] = {}

    async def prepare(self, rows: Iterable[TriggerRow]) -> bool:
        """Prepare these rows' triggers, and forget all other prepared triggers.

        A class that takes longer than `_SOON_S` continues to load in the background: see `wait_until_loaded`.

        Returns:
            True if this method waited for classes. The rows may have changed in the store meanwhile.
        """
        known, before = self._prepared, self._loading()
        self._prepared = {
            _id_of(row): known.get(_id_of(row)) or self._factory.prepare(row) for row in rows
        }
        loads = self._loading() - before
        if not loads:
            return False
        with anyio.move_on_after(_SOON_S):
            for load in loads:
                await load.wait_until_settled()
        return True

    def has(self, rows: Iterable[TriggerRow]) -> bool:
        """Return whether all these rows' triggers have been prepared."""
        return all(_id_of(row) in self._prepared for row in rows)

    def is_ready(self, row: TriggerRow) -> bool:
        """Return whether the row's trigger is prepared, and the load of its class has ended or has taken too long."""
        prepared = self._prepared.get(_id_of(row))
        return prepared is not None and prepared.class_load.is_settled

    def take(self, row: TriggerRow) -> PreparedTrigger:
        """Return the prepared trigger of a row, and forget it."""
        return self._prepared.pop(_id_of(row))

    @property
    def is_loading(self) -> bool:
        """Whether a class is still being loaded."""
        return bool(self._loading())

    def _loading(self) -> set[ClassLoad]:
        loads = {prepared.class_load for prepared in self._prepared.values()}
        return {load for load in loads if not load.is_settled}

    async def wait_until_loaded(self) -> None:
        """Wait until one of the loads that are under way has ended or has taken too long."""
        loads = self._loading()
        while loads == self._loading():
            await self._factory.loader.settled.wait()


def _id_of(row: TriggerRow) -> tuple[int, str]:
    return (row.trigger_id, row.stream_digest)
