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
    """The problems of the sources; both in the order of the watchers."""

    errors: tuple[Problem, ...] = ()
    """Wrong settings, and what a broker refused."""
    unavailable: tuple[Problem, ...] = ()
    """Sources that did not answer. The service may reach them from where it runs."""


async def check_sources(
    watchers: Iterable[ParsedWatcher],
    *,
    dags_folder: Path,
    allowed_modules: tuple[str, ...] = (),
    deadline: timedelta = DEADLINE,
) -> CheckedSources:
    """Have one trigger of each stream check its source, all concurrently.

    Runs users' code in this process: trigger classes are loaded as the service loads them. Whatever one of them raises
    is among the problems, and does not affect the others.

    Args:
        deadline: A source that takes longer counts as one that does not answer. It runs from when all have begun: each
            broker's client is imported then, on this event loop, and is no part of anybody's answer.
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
            await _look(kind, watcher.kwargs, limit, deadline.total_seconds())
        except Exception as error:  # noqa: BLE001  (the boundary to users' triggers)
            failures[watcher.stream_digest] = error
        await take_back_stray_cancellations()

    async with anyio.create_task_group() as tasks:
        for watcher, limit in zip(streams.values(), limits, strict=True):
            tasks.start_soon(ask, watcher, limit)
        # In this turn of the loop each of them gets to where it first waits.
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


async def _look(
    kind: type[BaseEventTrigger], kwargs: dict[str, Any], scope: anyio.CancelScope, seconds: float
) -> None:
    what = f"check_source() of {kind.__module__}.{kind.__qualname__}"
    with scope:
        try:
            trigger = kind(**kwargs)
            with plugin_code(what):
                await trigger.check_source()
        except Exception as error:
            # A client may raise anything when it is cancelled.
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
    """Say of which watcher an error is, and where that is defined."""
    file, _, line = watcher.location.rpartition(":")
    said = (
        error.message if isinstance(error, TriggererError) else f"{type(error).__name__}: {error}"
    )
    hint = error.hint if isinstance(error, TriggererError) else None
    who = f"watcher {watcher.name!r} of asset {watcher.asset_name!r}"
    if isinstance(error, PluginError):
        # The DAG file is right, so its line would mislead. Its author still has to know which watcher it is.
        reason = f"{said}; used by {who} ({watcher.location})"
        return Problem(_file_of(watcher.classpath), None, f"{reason}: {hint}" if hint else reason)
    reason = f"{who}: {said}"
    return Problem(
        file or watcher.location,
        int(line) if line.isdigit() else None,
        f"{reason} ({hint})" if hint else reason,
    )


def _file_of(classpath: str) -> str:
    """The file that defines a trigger's class, or the class path if there is no such file."""
    module = classpath
    while module := module.rpartition(".")[0]:
        if (loaded := sys.modules.get(module)) is not None:
            return getattr(loaded, "__file__", None) or classpath
    return classpath
