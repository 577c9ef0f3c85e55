"""Submits an application whose driver runs on the cluster, and watches it until it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import FormerLaunch, Launch
from triggerer.errors import RunFailed, SubmitFailed
from triggerer.worker.launchers import (
    Absent,
    Ended,
    Handle,
    Intent,
    Launcher,
    Running,
    Unknown,
    launcher_named,
)
from triggerer.worker.spark.sessions.classic import Installation
from triggerer.worker.spark.settings import master_of
from triggerer.worker.submit.submission import Submission

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

logger = logging.getLogger("triggerer.run")

_STOP_S: Final = 20.0
"""A stopped driver that has not ended after this time counts as unknown."""
_LOOK_EVERY_S: Final = 0.5
_UNKNOWN_EVERY_S: Final = 5.0


class Report(Protocol):
    """Reports the state of one launch."""

    def __call__(self, handle: Handle, state: AttemptState, reason: str | None = None) -> None: ...


def reporter(
    launcher: Launcher, task_id: str | None, on_launch: Callable[[Launch], None]
) -> Report:
    """Return a function that reports launches of this launcher and this task to `on_launch`."""

    def report(handle: Handle, state: AttemptState, reason: str | None = None) -> None:
        on_launch(
            Launch(
                handle.tag,
                launcher.name,
                state,
                datetime.now(UTC),
                task_id=task_id,
                place=launcher.place,
                external_id=handle.external_id,
                link=handle.link,
                reason=reason,
            )
        )

    return report


def launcher_of_master(master: str) -> str:
    """Return the name of the launcher that submits to this master in cluster mode.

    Raises:
        SubmitFailed: This kind of master runs no drivers.
    """
    for start, name in (("yarn", "yarn"), ("k8s://", "kubernetes"), ("spark://", "standalone")):
        if master.startswith(start):
            return name
    raise SubmitFailed(
        f"the master {master} runs no drivers",
        hint='take "spark.submit.deployMode" = "cluster" out, or set [spark] master to a cluster',
    )


def follow(
    submission: Submission,
    settings: SparkSettings,
    installation: Installation,
    task_id: str,
    former: Sequence[FormerLaunch],
    on_launch: Callable[[Launch], None],
) -> None:
    """Submit the application, and return once it has succeeded. If the task is stopped, stop the application, too.

    If an earlier attempt's application for this task still runs or has succeeded, wait for that application instead.
    Do not wait for an application from before the run's last end: a user has had the task executed again.

    Args:
        former: The launches of earlier attempts that may still be at work.
    Raises:
        SubmitFailed: The cluster refused the application.
        RunFailed: The application failed, was stopped from outside, or is no longer known to the cluster.
    """
    master = master_of(settings)
    launcher = launcher_named(launcher_of_master(master), settings)

    tell = reporter(launcher, task_id, on_launch)
    handle = Handle(submission.tag)
    try:
        again = _find_former(launcher, task_id, former)
        if isinstance(again, Ended):
            ended = again
        else:
            if again is not None:
                handle = again.handle
                logger.info("the application of a former attempt still works, and is followed")
            else:
                # Store the launch before the submission, because the cluster may start the application at once.
                tell(handle, AttemptState.LAUNCHING)
                details = {"submission": submission, "installation": installation}
                intent = Intent(submission.tag, submission.name, details)
                handle = launcher.launch(intent)
            logger.info("application %s on %s", handle.external_id or handle.tag, master)
            tell(handle, AttemptState.RUNNING)
            ended = _watch(launcher, handle, tell)
    except SubmitFailed as error:
        # The submission may fail after the cluster has accepted the application.
        if isinstance(launcher.find(submission.tag), Absent):
            tell(handle, AttemptState.FAILED, error.message)
        else:
            _stop(launcher, handle, tell)
        raise
    except BaseException:
        _stop(launcher, handle, tell)
        raise
    tell(ended.handle, ended.state, ended.reason)
    if ended.state is not AttemptState.SUCCESS:
        name = ended.handle.external_id or submission.tag
        raise RunFailed(f"the application {name} {ended.state}: {ended.reason or 'no reason'}")


def _find_former(
    launcher: Launcher, task_id: str, former: Sequence[FormerLaunch]
) -> Running | Ended | None:
    """Return an earlier attempt's application for this task if the application runs or has succeeded; else None.

    While an application's state is unknown, wait without limit.
    """
    for one in former:
        if one.task_id != task_id or one.launcher != launcher.name:
            continue
        if not (one.may_continue and launcher.can_reattach):
            continue
        sighting = launcher.find(one.tag, one.external_id)
        while isinstance(sighting, Unknown):
            # The application may still be at work, so no second one may begin.
            logger.warning("the application of attempt %d: %s", one.attempt, sighting.reason)
            time.sleep(_UNKNOWN_EVERY_S)
            sighting = launcher.find(one.tag, one.external_id)
        if isinstance(sighting, Running):
            return sighting
        if isinstance(sighting, Ended) and sighting.state is AttemptState.SUCCESS:
            return sighting
    return None


def _watch(launcher: Launcher, handle: Handle, tell: Report) -> Ended:
    for sighting in launcher.watch(handle):
        match sighting:
            case Ended():
                return sighting
            case Absent():
                reason = "the cluster no longer knows it"
                return Ended(handle, AttemptState.LOST, reason)
            case Unknown(reason):
                logger.warning("the application's state is unknown: %s", reason)
                tell(handle, AttemptState.UNKNOWN, reason)
            case Running(found, progress):
                handle = found
                logger.info(
                    "application %s: %s", found.external_id or found.tag, progress or "runs"
                )
                tell(found, AttemptState.RUNNING, progress)
    raise RunFailed("the application was not followed to its end")


def _stop(launcher: Launcher, handle: Handle, tell: Report) -> bool:
    """Stop the application, and return whether it has ended. Report its end, or that its state is unknown."""
    match stopped(launcher, handle):
        case Ended(found, state, reason):
            tell(found, AttemptState.CANCELLED if state is AttemptState.KILLED else state, reason)
        case Absent():
            tell(handle, AttemptState.CANCELLED, None)
        case Unknown(reason):
            tell(handle, AttemptState.UNKNOWN, reason)
            return False
    return True


def stopped(launcher: Launcher, handle: Handle) -> Ended | Absent | Unknown:
    """Stop the application, and wait a while for its end."""
    until = time.monotonic() + _STOP_S
    sighting = launcher.stop(handle)
    while isinstance(sighting, Running):
        if time.monotonic() >= until:
            return Unknown("it was stopped, and has not ended yet")
        time.sleep(_LOOK_EVERY_S)  # a cluster sends no notice of an end
        sighting = launcher.find(handle.tag, handle.external_id)
    return sighting


def end_earlier_try(
    launcher: Launcher,
    launch: Launch,
    on_launch: Callable[[Launch], None],
    tell_wait: Callable[[str | None], None],
    *,
    patience: timedelta,
) -> None:
    """Stop the application of an earlier try of the task, wait for its end, and report the end.

    The application may still be at work, and must not work at the same time as the next one.

    Args:
        tell_wait: Receives the reason when a wait begins, such as `the end of an earlier try's application ...`.
            Receives None when the wait ends.
        patience: How long to wait for the end.
    Raises:
        RunFailed: After `patience`, the application may still be at work. Its launch stays unknown.
    """
    handle = Handle(launch.tag, launch.external_id, launch.link)
    tell = reporter(launcher, launch.task_id, on_launch)
    until = time.monotonic() + patience.total_seconds()
    if _stop(launcher, handle, tell):
        return
    name = launch.external_id or launch.tag
    tell_wait(f"the end of an earlier try's application {name}")
    try:
        while time.monotonic() < until:
            time.sleep(_UNKNOWN_EVERY_S)  # no event tells that the place answers again
            if _stop(launcher, handle, tell):
                return
    finally:
        tell_wait(None)
    raise RunFailed(
        f"an earlier try's application {name} may still be at work, so the task is not tried again"
    )
