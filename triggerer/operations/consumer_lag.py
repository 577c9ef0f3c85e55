"""Measures the consumer lag of streams at their brokers, when an operator requests it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import anyio

from triggerer.abc import BaseEventTrigger, SourceLag
from triggerer.errors import TriggererError
from triggerer.plugins import load_trigger_class
from triggerer.streams.cancellation import plugin_code, take_back_stray_cancellations

DEADLINE: Final = timedelta(seconds=5)
_SILENT: Final = SourceLag(None, note="this kind of source does not report its lag")


@dataclass(frozen=True, slots=True)
class Asked:
    """A stream, and the class and arguments of one of its triggers. The trigger knows how to query the source."""

    stream: str
    """The id of the stream."""
    classpath: str
    kwargs: dict[str, Any]


async def measure_lags(
    triggers: Iterable[Asked],
    *,
    dags_folder: Path | None,
    allowed_modules: tuple[str, ...] = (),
    deadline: timedelta = DEADLINE,
) -> dict[str, SourceLag]:
    """Return the consumer lag by stream id. All sources are queried concurrently.

    The function executes users' code in this process. If a trigger or a source fails, no error is raised. The lag is
    then unknown, and its note says why.

    Args:
        triggers: If several triggers belong to one stream, only the first is used.
        deadline: If a source takes longer than this, its lag is unknown.
    """
    streams: dict[str, Asked] = {}
    for trigger in triggers:
        streams.setdefault(trigger.stream, trigger)
    found: dict[str, SourceLag] = {}

    async def ask(trigger: Asked) -> None:
        try:
            kind = load_trigger_class(
                trigger.classpath, dags_folder=dags_folder, allowed_modules=allowed_modules
            )
            found[trigger.stream] = await _measure(kind, trigger.kwargs, deadline.total_seconds())
        except Exception as error:  # noqa: BLE001  (the boundary to users' triggers)
            found[trigger.stream] = SourceLag(None, note=_reason(error))
        await take_back_stray_cancellations()

    async with anyio.create_task_group() as tasks:
        for trigger in streams.values():
            tasks.start_soon(ask, trigger)
    return found


async def _measure(
    kind: type[BaseEventTrigger], kwargs: dict[str, Any], seconds: float
) -> SourceLag:
    lag: SourceLag | None = None
    with anyio.move_on_after(seconds) as scope:
        try:
            with plugin_code("measure_lag()"):
                lag = await kind(**kwargs).measure_lag()
        except Exception:
            # A broker's client may raise any error when it is cancelled, so ignore errors after the deadline.
            if not scope.cancel_called:
                raise
    if scope.cancel_called:
        return SourceLag(None, note=f"its source did not answer within {seconds:g} s")
    return lag or _SILENT


def _reason(error: Exception) -> str:
    return (
        error.message if isinstance(error, TriggererError) else f"{type(error).__name__}: {error}"
    )
