"""Checks whether the sources of watchers can be read, for `triggerer check`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from triggerer.abc import BaseEventTrigger
from triggerer.domain.dag_files.parsed import ParsedWatcher, Problem
from triggerer.errors import BrokerUnavailable, PluginError, TriggererError
from triggerer.plugins import load_trigger_class
from triggerer.streams.cancellation import plugin_code, take_back_stray_cancellations
from triggerer.streams.supervision.delivery_facts import raised_by

DEADLINE: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class CheckedSources:
    """The problems of the sources, in the order of the watchers."""

    errors: tuple[Problem, ...] = ()
    """Wrong settings, and refusals by a broker."""
    unavailable: tuple[Problem, ...] = ()
    """Sources that did not answer. The service may reach them from its own machine."""


async def check_sources(
    watchers: Iterable[ParsedWatcher],
    *,
    dags_folder: Path,
    allowed_modules: tuple[str, ...] = (),
    deadline: timedelta = DEADLINE,
) -> CheckedSources:
    """Check the sources of all streams concurrently, by one trigger of each stream.

    The code of users' triggers runs in this process. An error of one trigger does not affect the others.

    Args:
        deadline: A source that takes longer is reported as unavailable. The time does not include the imports of the
            brokers' clients, which block the event loop.
    """
    streams: dict[str, ParsedWatcher] = {}
    for watcher in watchers:
        streams.setdefault(watcher.stream_digest, watcher)
    failures: dict[str, Exception] = {}
    limits = [anyio.CancelScope() for _ in streams]

    async def ask(watcher: ParsedWatcher, limit: anyio.CancelScope) -> None:
        try:
            kind = load_trigger_class(
                watcher.classpath, dags_folder=dags_folder, allowed_modules=allowed_modules
            )
            await _check_source(kind, watcher.kwargs, limit, deadline.total_seconds())
        except Exception as error:  # noqa: BLE001  (the boundary to users' triggers)
            failures[watcher.stream_digest] = error
        await take_back_stray_cancellations()

    async with anyio.create_task_group() as tasks:
        for watcher, limit in zip(streams.values(), limits, strict=True):
            tasks.start_soon(ask, watcher, limit)
        # At this checkpoint each check runs until its first await, and so imports its client.
        await checkpoint()
        ends_at = anyio.current_time() + deadline.total_seconds()
        for limit in limits:
            limit.deadline = ends_at
    found = [(streams[digest], failures[digest]) for digest in streams if digest in failures]
    return CheckedSources(
        errors=tuple(
            problem_of(*one) for one in found if not isinstance(one[1], BrokerUnavailable)
        ),
        unavailable=tuple(
            problem_of(*one) for one in found if isinstance(one[1], BrokerUnavailable)
        ),
    )


async def _check_source(
    kind: type[BaseEventTrigger], kwargs: dict[str, Any], scope: anyio.CancelScope, seconds: float
) -> None:
    what = f"check_source() of {kind.__module__}.{kind.__qualname__}"
    with scope:
        try:
            trigger = kind(**kwargs)
            with plugin_code(what):
                await trigger.check_source()
        except Exception as error:
            # A client may raise any error when the timeout cancels it. The timeout is the cause, so report the timeout.
            if scope.cancel_called:
                raise _silent(seconds) from error
            if isinstance(error, TriggererError):
                raise
            raise raised_by(what, error) from error
    if scope.cancel_called:
        raise _silent(seconds)


def _silent(seconds: float) -> BrokerUnavailable:
    return BrokerUnavailable(f"its source did not answer within {seconds:g} s")


def problem_of(watcher: ParsedWatcher, error: Exception) -> Problem:
    """Return an error as a problem that names its watcher, and the line that defines the watcher."""
    file, _, line = watcher.location.rpartition(":")
    said = (
        error.message if isinstance(error, TriggererError) else f"{type(error).__name__}: {error}"
    )
    hint = error.hint if isinstance(error, TriggererError) else None
    who = f"watcher {watcher.name!r} of asset {watcher.asset_name!r}"
    if isinstance(error, PluginError):
        # The plugin has to be corrected, so report its file. The text names the watcher and its place in the DAG file.
        reason = f"{said}; used by {who} ({watcher.location})"
        return Problem(_file_of(watcher.classpath), None, f"{reason}: {hint}" if hint else reason)
    reason = f"{who}: {said}"
    return Problem(
        file or watcher.location,
        int(line) if line.isdigit() else None,
        f"{reason} ({hint})" if hint else reason,
    )


def _file_of(classpath: str) -> str:
    """Return the file that defines a trigger's class, or else the class path."""
    module = classpath
    while module := module.rpartition(".")[0]:
        if (loaded := sys.modules.get(module)) is not None:
            return getattr(loaded, "__file__", None) or classpath
    return classpath
