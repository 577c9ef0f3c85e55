"""How a run ends whose worker does not report its end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from triggerer.domain.attempts import RunEnd, RunOrder
from triggerer.domain.runs import RunState
from triggerer.executor.log_files import LogFiles
from triggerer.executor.result_writer import ResultWriter
from triggerer.store.runs.results import AttemptUpdate
from triggerer.worker.failures import death_reason, storable

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RunEnding:
    """What a slot was told about the end of its job, and the writing of it. One for each job.

    Args:
        run: None where the job is to warm up: then nothing is written.
    """

    result_writer: ResultWriter
    log_files: LogFiles
    run: RunOrder | None
    verdict: RunEnd | None = None
    """How the run ends unless it ends by itself."""
    is_cut_short: bool = False
    """The store is to show nothing of how it ended: others execute it, or it is queued again."""
    may_end_log: bool = True
    """False once others may have begun the run: the log may be theirs."""

    @property
    def is_called_off(self) -> bool:
        return self.is_cut_short or self.verdict is not None

    def cut_short(self) -> None:
        """Write nothing of how the run ends. A verdict from before is still written."""
        self.is_cut_short |= self.verdict is None

    async def mark_unstarted(self) -> None:
        """Write the verdict, if there is one, of a run that no worker has begun."""
        if not self.is_cut_short and self.verdict is not None:
            await self.note(self.verdict.state, self.verdict.error)

    async def record_death(
        self, code: int, *, output: str, is_taken: bool, malformed: str | None = None
    ) -> None:
        """Write how the run ended whose worker has died: as the verdict says, or as failed.

        Args:
            code: As `WorkerProcess.reap` returns it.
            output: The worker's last, apart from the run's log.
            is_taken: Whether it had taken the run.
            malformed: What came through its channel that cannot be understood, for which it was ended.
        """
        assert self.run is not None
        if self.is_cut_short:
            if is_taken:
                await self._end_log("interrupted: the service stopped, and the run is queued again")
            return
        if self.verdict is not None:
            await self.note(self.verdict.state, self.verdict.error, code)
            return
        tail = await self.log_files.tail(self.run.log_path)
        reason = death_reason(code, is_taken=is_taken, malformed=malformed)
        _log.warning("a worker died", dag=self.run.dag_id, run=self.run.run_id, reason=reason)
        output = "\n".join(filter(None, (tail, output)))
        await self.note(RunState.FAILED, reason, code, output=output)

    async def note(
        self,
        state: RunState,
        reason: str | None,
        code: int | None = None,
        *,
        output: str | None = None,
    ) -> None:
        """Write that the run has ended: into its log first, since who sees it in the store looks there."""
        await self._end_log(state if reason in (None, state) else f"{state}: {reason}")
        if self.is_cut_short:
            # Meanwhile.
            return
        if output is not None:
            reason = storable(f"{reason}; its last output:\n{output}")
        if self.run is not None:
            end = RunEnd(state, datetime.now(UTC), reason, code)
            self.result_writer.submit_nowait(AttemptUpdate(self.run, end=end))

    async def _end_log(self, how: str) -> None:
        if self.run is not None and self.may_end_log:
            await self.log_files.end(self.run.log_path, self.run.run_id, how)
