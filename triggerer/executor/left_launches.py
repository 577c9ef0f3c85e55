"""Ends the launches that killed runs have left outside their process, such as sessions on a Spark Connect server.

A run's process ends its own launches, unless the process dies. Then the next attempt of the run ends them, see
`triggerer.worker.launchers.former_attempts`. If there is no next attempt, this module ends them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import structlog

from triggerer.backoff import Backoff, warn_seldom
from triggerer.domain.launches import FormerLaunch, Launch
from triggerer.errors import RowRefused, TransientStoreError
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.slots.worker_frames import LAUNCH
from triggerer.processes.child_process import ChildProcess
from triggerer.processes.ipc import ChannelClosed
from triggerer.store.database.transactions import Database
from triggerer.store.runs.attempts.open_launches import open_launches_of_ended_runs, update_launches
from triggerer.synchronization import AutoResetEvent
from triggerer.worker.protocol import message

_log = structlog.get_logger(__name__)

_MOST: Final = 50
"""The most launches that one child process ends."""
_TIME_S: Final = 300.0
_LONGEST_DELAY_S: Final = 600.0


class LeftLaunches:
    """Finds and ends launches of ended runs.

    Args:
        spark: The settings of `[spark]`, as JSON.
        sweep_every_s: The time between two searches for launches, if `ask` is not called.
    """

    def __init__(
        self,
        database: Database,
        result_writer: ResultWriter,
        *,
        executor: str,
        spark: Mapping[str, Any],
        sweep_every_s: float,
    ) -> None:
        self._database = database
        self._result_writer = result_writer
        self._executor = executor
        self._spark = spark
        self._sweep_every_s = sweep_every_s
        self._asked = AutoResetEvent()
        self._tries: dict[str, tuple[float, float]] = {}
        """Launches that have not ended, by tag: when to try again (`time.monotonic`), and the last delay in seconds."""

    def ask(self) -> None:
        """Search soon, because a run has just left a launch behind."""
        self._asked.set()

    async def run(self) -> None:
        """Search for launches and end them, until cancelled."""
        backoff = Backoff(first=1.0, longest=60.0)
        while True:
            self._asked.clear()
            try:
                # The search finds only runs whose end is stored, so wait until all ends are stored.
                await self._result_writer.written()
                await self._end_some()
                backoff.reset()
            except (TransientStoreError, RowRefused, OSError) as error:
                # RowRefused: a later try may find another state, which the store accepts.
                # OSError: no process can be started now.
                delay = backoff.next_delay()
                warn_seldom(
                    _log,
                    backoff.failures,
                    "launches that runs left behind cannot be ended now",
                    error=str(error),
                )
                await anyio.sleep(delay)
                continue
            await self._asked.wait_for(self._sweep_every_s)

    async def _end_some(self) -> None:
        is_alone = self._database.dialect == "sqlite"
        async with self._database.reading() as session:
            found = await open_launches_of_ended_runs(
                session, executor=self._executor, is_alone=is_alone, limit=_MOST
            )
        self._tries = {one.tag: self._tries[one.tag] for _, one in found if one.tag in self._tries}
        now = time.monotonic()
        due = [(pk, one) for pk, one in found if self._tries.get(one.tag, (now, 0.0))[0] <= now]
        if not due:
            return
        runs = {one.tag: pk for pk, one in due}
        news = [
            (runs[launch.tag], launch)
            for launch in await self._in_a_process([one for _, one in due])
            if launch.tag in runs
        ]
        for _, one in due:
            self._delay(one.tag)
        if not news:
            return
        await self._database.perform(update_launches(news))
        for pk, launch in news:
            _log.info(
                "tried to end a launch that a run left behind",
                run_pk=pk, launcher=launch.launcher, tag=launch.tag, state=launch.state,
                reason=launch.reason,
            )  # fmt: skip

    async def _in_a_process(self, launches: Sequence[FormerLaunch]) -> list[Launch]:
        """End launches in a child process. Return the states that the child has reported.

        Raises:
            OSError: No process can be started.
        """
        found: list[Launch] = []
        async with (
            aclosing(await ChildProcess.start("triggerer.worker.launchers.main")) as child,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(child.supervise)
            with anyio.move_on_after(_TIME_S):
                try:
                    await child.channel.send(
                        message("end", spark=self._spark, launches=list(launches))
                    )
                    while True:
                        frame: Any = await child.channel.receive()
                        found.append(LAUNCH.validate_python(frame["launch"]))
                except ChannelClosed:
                    code = await child.reap()
                    if code and len(found) < len(launches):
                        _log.warning("the process that ends launches has died", code=code)
            child.kill()
            tasks.cancel_scope.cancel()
        return found

    def _delay(self, tag: str) -> None:
        _, last = self._tries.get(tag, (0.0, self._sweep_every_s / 2))
        delay = min(2 * last, _LONGEST_DELAY_S)
        self._tries[tag] = (time.monotonic() + delay, delay)
