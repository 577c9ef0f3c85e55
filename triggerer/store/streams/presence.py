"""Sends heartbeats for the parts of the service that own no streams or runs, so that operators see which are alive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import anyio
from anyio.abc import TaskStatus

from triggerer.errors import StoreError
from triggerer.observability.logging_setup import LazyLogger
from triggerer.processes.instance_ids import new_instance_id
from triggerer.store.database.transactions import Database
from triggerer.store.streams.leases import deregister_instance, register_instance

_log = LazyLogger(__name__)

INTERVAL: Final = timedelta(seconds=10)
EXPIRY: Final = timedelta(seconds=30)
_DEREGISTER_TIMEOUT: Final = timedelta(seconds=2)


class Presence:
    """Registers some parts of this process, and keeps them registered. A heartbeat is one transaction for all parts.

    Args:
        kinds: The kinds of the parts, see `Instance.kind`.
    """

    def __init__(self, database: Database, kinds: Sequence[str]) -> None:
        self._database = database
        self._ids = {new_instance_id(): kind for kind in kinds}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Send heartbeats until cancelled, then delete the registrations. The first heartbeat precedes `started()`."""
        try:
            await self._beat()
            task_status.started()
            while True:
                await anyio.sleep(INTERVAL.total_seconds())
                await self._beat()
        finally:
            with anyio.move_on_after(_DEREGISTER_TIMEOUT.total_seconds(), shield=True):
                await self._leave()

    async def _beat(self) -> None:
        try:
            async with self._database.transaction() as session:
                for instance_id, kind in self._ids.items():
                    await register_instance(session, instance_id, kind=kind, expiry=EXPIRY)
        except StoreError as error:
            # Go on: the parts are shown as silent until a heartbeat succeeds.
            _log.debug("a heartbeat failed", error=str(error))

    async def _leave(self) -> None:
        try:
            async with self._database.transaction(commit_timeout=_DEREGISTER_TIMEOUT) as session:
                for instance_id in self._ids:
                    await deregister_instance(session, instance_id)
        except StoreError as error:
            # The registrations expire by themselves.
            _log.debug("a part could not sign off", error=str(error))
