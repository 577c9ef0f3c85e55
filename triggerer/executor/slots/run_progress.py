"""Stores the progress of a run. Progress that the store does not accept at once is dropped."""

from __future__ import annotations

from dataclasses import dataclass

from triggerer.domain.attempts import RunOrder, RunProgress
from triggerer.errors import StoreError
from triggerer.executor.result_writer import ResultWriter
from triggerer.store.runs.transitions import record_progress


@dataclass(slots=True)
class ProgressWriter:
    """Stores the newest progress of a run. Drops older progress that is not stored yet.

    In the end no progress is missing, because a task's result has the task's last progress.
    """

    result_writer: ResultWriter
    order: RunOrder
    _newest: RunProgress | None = None
    _is_writing: bool = False

    async def write(self, progress: RunProgress) -> None:
        """Store the progress. If an earlier call is still storing, that call stores this progress next."""
        self._newest = progress
        if self._is_writing:
            return
        self._is_writing = True
        try:
            while self._newest is not None:
                progress, self._newest = self._newest, None
                for step in record_progress(
                    executor=self.result_writer.executor,
                    run_pk=self.order.run_pk,
                    epoch=self.order.epoch,
                    progress=progress,
                ):
                    await self.result_writer.perform_with_next_commit(step)
        except StoreError:
            # The next progress comes in a second. Other code reports that the store is unavailable.
            self._newest = None
        finally:
            self._is_writing = False
