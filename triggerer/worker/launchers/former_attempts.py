"""Stops the launches that the dead attempts of a run left on Spark.

- Before the next attempt of the run executes the user's code, it stops the launches. Only a `SparkApplication` in
  cluster mode continues, if the run has not ended since: the task waits for this application instead of submitting it
  again.
- If the run gets no further attempt, the executor's `LeftLaunches` stops the launches in a separate process
  (`launchers.main`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import Wait
from triggerer.domain.launches import FormerLaunch, Launch
from triggerer.errors import TriggererError
from triggerer.worker.launchers.protocol import (
    Absent,
    Ended,
    Handle,
    Launcher,
    Running,
    Sighting,
    Unknown,
)
from triggerer.worker.launchers.registry import launcher_named

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

logger = logging.getLogger("triggerer.run")

_LOOK_EVERY_S: Final = 0.5
_SHORT_PATIENCE: Final = timedelta(seconds=3)
"""How long to wait for a launch that has already been unknown for longer than `patience`. The wait occupies a slot that
other runs could use, so it is short."""


class StillUnknown(Exception):
    """An earlier attempt may still be at work. The text, which is for users, names the attempt and the cause."""


class FormerAttempts:
    """Ends the launches of earlier attempts.

    Args:
        find_launcher: Returns the launcher with a name, and raises a `TriggererError` if there is none.
        on_launch: Receives each launch with its final state, or with the state `UNKNOWN` after `patience`.
        on_wait: Receives a wait when it begins, when its reason changes, and when it ends (then without a reason).
        patience: How long to wait for a server or a cluster that does not answer.
    """

    def __init__(
        self,
        find_launcher: Callable[[str], Launcher],
        *,
        on_launch: Callable[[Launch], None],
        on_wait: Callable[[Wait], None],
        patience: timedelta,
    ) -> None:
        self._find_launcher = find_launcher
        self._on_launch = on_launch
        self._on_wait = on_wait
        self._patience = patience

    def end_all(
        self, launches: Sequence[FormerLaunch], *, may_reattach: bool = False
    ) -> list[FormerLaunch]:
        """Stop the launches, and wait until they are gone. Return the launches that were left running.

        Args:
            may_reattach: True: leave a launch running if it may continue (`FormerLaunch.may_continue`) and this
                attempt can watch it (`Launcher.can_reattach`). False: stop all launches.
        Raises:
            StillUnknown: A server or a cluster did not answer, or did not confirm the end.
        """
        return [one for one in launches if not self._end(one, may_reattach=may_reattach)]

    def _end(self, former: FormerLaunch, *, may_reattach: bool) -> bool:
        """Return True once the launch is gone. Return False for a launch that this attempt can watch and must keep."""
        since = datetime.now(UTC)
        self._on_wait(Wait(f"{_awaited(former)}: it is being stopped", since))
        until = time.monotonic() + patience_for(former, self._patience, since).total_seconds()
        waits_for: str | None = None
        try:
            while True:
                sighting = self._find_and_stop(former, may_reattach=may_reattach)
                if sighting is None:
                    return False
                if isinstance(sighting, Ended | Absent):
                    self._on_launch(_ended(former, sighting))
                    logger.info("%s: %s", _named(former), _how(sighting))
                    return True
                reason = _why(former, sighting)
                if time.monotonic() >= until:
                    self._on_launch(_unknown(former, reason))
                    raise StillUnknown(f"{_awaited(former)}: {reason}")
                if reason != waits_for:
                    waits_for = reason
                    logger.warning("%s: %s", _named(former), reason)
                    self._on_wait(Wait(f"{_awaited(former)}: {reason}", since))
                time.sleep(_LOOK_EVERY_S)
        finally:
            self._on_wait(Wait(None, datetime.now(UTC)))

    def _find_and_stop(self, former: FormerLaunch, *, may_reattach: bool) -> Sighting | None:
        """Stop the launch and return its state. Return None for a launch that this attempt can watch and must keep.

        The method never raises. An error of one launcher must not keep other launches from their end.
        """
        try:
            return self._ask_launcher(former, may_reattach=may_reattach)
        except TriggererError as error:
            return Unknown(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a launcher raises, the launch's state is unknown
            return Unknown(f"the launcher {former.launcher} failed: {error!r}")

    def _ask_launcher(self, former: FormerLaunch, *, may_reattach: bool) -> Sighting | None:
        launcher = self._find_launcher(former.launcher)
        if former.place is not None and former.place != launcher.place:
            return Unknown(f"it was launched on {former.place}, and [spark] has {launcher.place}")
        sighting = launcher.find(former.tag, former.external_id)
        if not isinstance(sighting, Running):
            return sighting
        if may_reattach and former.may_continue and launcher.can_reattach:
            return None
        known = sighting.handle
        handle = Handle(
            former.tag, known.external_id or former.external_id, known.link or former.link
        )
        return launcher.stop(handle)


def patience_for(former: FormerLaunch, patience: timedelta, now: datetime) -> timedelta:
    """Return `patience`, or at most three seconds if the launch has been unknown for longer than `patience`."""
    since = former.unknown_since
    if since is not None and now - since > patience:
        return min(patience, _SHORT_PATIENCE)
    return patience


def former_attempts(
    settings: SparkSettings,
    *,
    on_launch: Callable[[Launch], None],
    on_wait: Callable[[Wait], None],
) -> FormerAttempts:
    """Return a `FormerAttempts` that uses the launchers of these settings."""
    return FormerAttempts(
        lambda name: launcher_named(name, settings),
        on_launch=on_launch,
        on_wait=on_wait,
        patience=settings.cluster_patience,
    )


def _named(former: FormerLaunch) -> str:
    what = "the attempt's session" if former.task_id is None else f"task {former.task_id}"
    return f"former attempt {former.attempt}, {what}"


def _awaited(former: FormerLaunch) -> str:
    return f"the end of attempt {former.attempt}, which may still work"


def _why(former: FormerLaunch, sighting: Sighting) -> str:
    if isinstance(sighting, Unknown):
        return sighting.reason
    place = "" if former.place is None else f" on {former.place}"
    return f"it was told to stop{place}, and its end is not confirmed yet"


def _how(sighting: Ended | Absent) -> str:
    if isinstance(sighting, Absent):
        return "it is gone"
    return sighting.reason or f"it has ended: {sighting.state}"


def _ended(former: FormerLaunch, sighting: Ended | Absent) -> Launch:
    known = None if isinstance(sighting, Absent) else sighting.handle
    return Launch(
        former.tag,
        former.launcher,
        AttemptState.LOST if isinstance(sighting, Absent) else sighting.state,
        datetime.now(UTC),
        task_id=former.task_id,
        place=former.place,
        external_id=(known and known.external_id) or former.external_id,
        link=(known and known.link) or former.link,
        reason=_how(sighting),
    )


def _unknown(former: FormerLaunch, reason: str) -> Launch:
    return Launch(
        former.tag,
        former.launcher,
        AttemptState.UNKNOWN,
        datetime.now(UTC),
        task_id=former.task_id,
        place=former.place,
        external_id=former.external_id,
        link=former.link,
        reason=reason,
    )
