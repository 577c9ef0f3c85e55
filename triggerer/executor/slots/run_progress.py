"""Stores the progress of one run after the other, and drops what the store cannot take at once."""

from __future__ import annotations

from dataclasses import dataclass

from triggerer.domain.attempts import Progress, RunOrder
from triggerer.errors import StoreError
from triggerer.executor.result_writer import ResultWriter
from triggerer.store.runs.transitions import record_progress


@dataclass(slots=True)
class ProgressWriter:
    """Keeps the newest progress of a slot's run until it is stored.

    Progress is no result: a run that ended has none, and nothing waits for it.
    """

    result_writer: ResultWriter
    _newest: tuple[RunOrder, Progress] | None = None
    _is_writing: bool = False

    async def write(self, order: RunOrder, progress: Progress) -> None:
        """Store the progress, or leave it to the call that is storing."""
        self._newest = (order, progress)
        if self._is_writing:
            return
        self._is_writing = True
        try:
            while self._newest is not None:
                (order, progress), self._newest = self._newest, None
                step = record_progress(
                    executor=self.result_writer.executor,
                    run_pk=order.run_pk,
                    epoch=order.epoch,
                    progress=progress,
                )
                await self.result_writer.perform_with_next_commit(step)
        except StoreError:
            # The next progress is in a second. The store's absence is reported elsewhere.
            self._newest = None
        finally:
            self._is_writing = False
