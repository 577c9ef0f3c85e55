"""Decides and records the end of a run whose process does not report the end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunEnd, RunOrder
from triggerer.domain.launches import CONNECT, Launch, session_id_of
from triggerer.domain.runs import RunState
from triggerer.executor.log_files import LogFiles
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.slots.deaths import Death
from triggerer.store.runs.results import AttemptUpdate
from triggerer.worker.failures import storable

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RunEnding:
    """Collects the decisions about the end of a slot's job, and records that end.

    Args:
        run: The run of the job. None: the job is to warm up, and nothing is recorded.
    """

    result_writer: ResultWriter
    log_files: LogFiles
    run: RunOrder | None
    verdict: RunEnd | None = None
    """The executor's decision about the run's end, such as a cancellation. The run may report another end first."""
    is_overdue: bool = False
    """True if a task outlived its timeout by more than `timeout_grace`: the run's process must be killed."""
    is_cut_short: bool = False
    """True: store no end of the run, because the run is queued again, or another executor executes it."""
    has_left_launches: bool = False
    """True if the run's process has died, and its session may still be at work on a Spark Connect server."""
    may_end_log: bool = True
    """False once another executor may have begun the run, and may be writing the run's log."""

    @property
    def is_called_off(self) -> bool:
        return self.is_cut_short or self.verdict is not None

    def cut_short(self) -> None:
        """From now on, record no end of the run, unless `verdict` is set already."""
        self.is_cut_short |= self.verdict is None

    def give_away(self) -> None:
        """Call `cut_short`, and write no end into the run's log, because another executor may be writing this log."""
        self.may_end_log = False
        self.cut_short()

    async def record_verdict(self) -> None:
        """Record the verdict, if any, for a run that no process has begun."""
        if not self.is_cut_short and self.verdict is not None:
            await self.record_end(self.verdict.state, self.verdict.error)

    async def record_death(
        self, death: Death, *, output: str, has_begun: bool, malformed: str | None = None
    ) -> None:
        """Record the end of a run whose process has died: the verdict if there is one, otherwise a failure.

        Args:
            output: The worker's last output outside the run's log.
            has_begun: True if the process had accepted the run.
            malformed: What was wrong with the process's data, if the executor killed the process for malformed data.
        """
        assert self.run is not None
        if self.is_cut_short:
            if has_begun:
                await self._end_log("interrupted: the service stopped, and the run is queued again")
            return
        if self.verdict is not None:
            await self.record_end(self.verdict.state, self.verdict.error, death.code)
            return
        tail = await self.log_files.tail(self.run.log_path)
        reason = death.reason(has_begun=has_begun, malformed=malformed)
        _log.warning(
            "a worker died" if death.is_of_worker else "a run's process died",
            dag=self.run.dag_id,
            run=self.run.run_id,
            reason=reason,
        )
        output = "\n".join(filter(None, (tail, output)))
        await self.record_end(RunState.FAILED, reason, death.code, output=output)

    async def record_end(
        self,
        state: RunState,
        reason: str | None,
        code: int | None = None,
        *,
        output: str | None = None,
    ) -> None:
        """Write the run's end into the log, then into the store: users may read the log once the store has the end."""
        await self._end_log(state if reason in (None, state) else f"{state}: {reason}")
        if self.is_cut_short:
            # The run was cut short while the log was written.
            return
        if output is not None:
            reason = storable(f"{reason}; its last output:\n{output}")
        if self.run is not None:
            end = RunEnd(state, datetime.now(UTC), reason, code)
            launches = () if code is None else left_behind(self.run)
            self.has_left_launches |= bool(launches)
            self.result_writer.submit_nowait(AttemptUpdate(self.run, end=end, launches=launches))

    async def _end_log(self, how: str) -> None:
        if self.run is not None and self.may_end_log:
            await self.log_files.end(self.run.log_path, self.run.run_id, how)


def left_behind(run: RunOrder) -> tuple[Launch, ...]:
    """Return the session that an attempt may have left on a Spark Connect server when its process died."""
    if run.connect is None:
        return ()
    return (
        Launch(
            run.tag,
            CONNECT,
            AttemptState.UNKNOWN,
            datetime.now(UTC),
            place=run.connect,
            external_id=session_id_of(run.tag),
            reason="the run's process died",
        ),
    )
