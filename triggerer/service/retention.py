"""Deletes old data each night, and when a bound of the database is passed."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.config import written_age
from triggerer.config.sections import RetentionSettings
from triggerer.domain.actors import SERVICE, Actor, Role
from triggerer.errors import MoveRefused, TriggererError
from triggerer.operations.cleaning import Bounds, Cleaned, Limits, SteadyClock, clean, night_after
from triggerer.operations.cleaning.logs import clean_logs
from triggerer.operations.cleaning.pace import Pace
from triggerer.store.audit.cleanings import (
    CleaningState,
    make_state,
    read_state,
    save_full_bytes,
)
from triggerer.store.database.transactions import Database, database_now

_log = structlog.get_logger(__name__)

_LOOK_EVERY: Final = timedelta(minutes=1)
_BETWEEN_BOUNDS: Final = timedelta(minutes=10)
"""After the start of a cleaning, the bounds are not checked for this time.

A cleaning reads all events, even if all of them must stay."""
_ACTOR: Final = Actor("retention", Role.ADMIN, SERVICE)


class Retention:
    """Cleans the database when a cleaning is due. It runs in each scheduler's process, but only one cleans at a time.

    Args:
        ack_timeout: The longest time that a watcher has for a message.
        since: Used as the time of the last cleaning if the stored time lies in the future, because the database's
            clock was set back. None: the time of the first check is used.
    """

    def __init__(
        self,
        database: Database,
        settings: RetentionSettings,
        *,
        ack_timeout: timedelta,
        clock: SteadyClock | None = None,
        since: datetime | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._ack_timeout = ack_timeout
        self._clock = clock or SteadyClock()
        self._bounds = Bounds(settings.max_events, settings.max_bytes)
        self._since = since

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Clean whenever a cleaning is due.

        Cancellation: The open transaction is rolled back, or its commit completes.
        """
        self._log_settings()
        backoff = Backoff(first=_LOOK_EVERY.total_seconds(), longest=3600)
        task_status.started()
        while True:
            delay = 0.0
            try:
                await self.clean_if_due()
                backoff.reset()
            except TriggererError as error:
                # The store is unavailable, or a log cannot be deleted. `triggerer health` shows the error.
                delay = backoff.next_delay()
                warn_seldom(_log, backoff.failures, "old data was not deleted", error=str(error))
            except Exception:  # noqa: BLE001 (see below)
                # Log the error and go on: the scheduler must not end because a cleaning has a bug.
                delay = backoff.next_delay()
                _log.exception("a cleaning ended by a bug")
            await anyio.sleep(_LOOK_EVERY.total_seconds() + delay)

    async def clean_if_due(self) -> Cleaned | None:
        """Clean if a cleaning is due; return what was deleted. None: nothing was due, or another process cleans.

        Raises:
            TriggererError: A clock may be wrong, or the cleaning failed. The error of a failed cleaning is stored if
                the store answers.
        """
        async with self._database.reading() as session:
            now = await database_now(session)
            state = await read_state(session)
        doubt = self._clock.doubt(now)
        if state is None:
            async with self._database.transaction() as session:
                await make_state(session)
            return None
        if state.holder is not None:
            return None
        if self._is_due(state, now):
            _refuse_doubted(doubt)
            return await self._clean(Limits.of(self._settings, now))
        cut = await self._cut(state, now)
        if cut is None:
            return None
        _refuse_doubted(doubt)
        _log.info("the database is full; the oldest events are deleted", before=cut.isoformat())
        cleaned = await self._clean(Limits.of(self._settings, now).with_room(cut))
        if cleaned is not None and not cleaned.asset_events:
            kept = dict(cleaned.kept_events)
            _log.warning("the database is full, but all of its old events must stay", kept=kept)
        return cleaned

    def _is_due(self, state: CleaningState, now: datetime) -> bool:
        """Return whether a night has come since the last cleaning. Without a cleaning, the first check counts."""
        if self._since is None or self._since > now:
            self._since = now
        last = state.succeeded_at or state.made_at
        # If the clock was set back, the last cleaning may lie in the future. Then use `_since` instead.
        return night_after(last if last <= now else self._since) <= now

    async def _cut(self, state: CleaningState, now: datetime) -> datetime | None:
        is_recent = state.began_at is not None and now - _BETWEEN_BOUNDS < state.began_at <= now
        if is_recent:
            return None
        async with self._database.reading() as session:
            return await self._bounds.cut(session, state)

    async def _clean(self, limits: Limits) -> Cleaned | None:
        began = time.monotonic()
        try:
            cleaned = await clean(self._database, _ACTOR, limits, ack_timeout=self._ack_timeout)
        except MoveRefused:
            return None
        if self._settings.max_bytes is not None:
            async with self._database.transaction() as session:
                await save_full_bytes(session, await self._bounds.size_to_save(session))
        _log.info(
            "old data was deleted",
            seconds=round(time.monotonic() - began, 1),
            kept_events=dict(cleaned.kept_events),
            **cleaned.deleted,
        )
        return cleaned

    def _log_settings(self) -> None:
        chosen = self._settings
        _log.info(
            "data is deleted by age, each night at 03:00",
            events=written_age(chosen.events),
            runs=written_age(chosen.runs),
            logs=written_age(chosen.logs),
            audit=written_age(chosen.audit),
            parked=written_age(chosen.parked),
            max_events=chosen.max_events,
            max_bytes=chosen.max_bytes,
        )


def _refuse_doubted(doubt: str | None) -> None:
    if doubt is not None:
        raise TriggererError(f"nothing is deleted yet: {doubt}")


class LogRetention:
    """Deletes old logs in a process that has an executor but no scheduler. With a scheduler, `Retention` deletes them.

    Args:
        age: The time from a run's end until its log is deleted.
        since: When logs were last deleted. None: logs are first deleted in the night after the start.
    """

    def __init__(
        self, database: Database, age: timedelta, *, since: datetime | None = None
    ) -> None:
        self._database = database
        self._age = age
        self._clock = SteadyClock()
        self._last = since

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Delete logs each night, until cancelled."""
        backoff = Backoff(first=_LOOK_EVERY.total_seconds(), longest=3600)
        task_status.started()
        while True:
            delay = 0.0
            try:
                await self.clean_if_due()
                backoff.reset()
            except TriggererError as error:
                delay = backoff.next_delay()
                warn_seldom(_log, backoff.failures, "old logs were not deleted", error=str(error))
            await anyio.sleep(_LOOK_EVERY.total_seconds() + delay)

    async def clean_if_due(self) -> int:
        """Delete old logs if a night has come since they were last deleted; return the number of deleted logs.

        Raises:
            TriggererError: The store is unavailable, or a log cannot be deleted.
        """
        async with self._database.reading() as session:
            now = await database_now(session)
        is_doubted = self._clock.doubt(now) is not None
        if self._last is None or self._last > now:
            self._last = now
        if is_doubted or night_after(self._last) > now:
            return 0
        cleaned = Cleaned(Limits(logs=now - self._age), dry_run=False)
        await clean_logs(self._database, now - self._age, cleaned, Pace())
        self._last = now
        if cleaned.logs:
            _log.info("old logs were deleted", logs=cleaned.logs)
        return cleaned.logs
