"""`triggerer watchers … --lag`: asks brokers and other sources for the consumer lag of the streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triggerer.cli.terminal.output import print_note
from triggerer.cli.terminal.session import settings_for

if TYPE_CHECKING:
    from triggerer.abc import SourceLag
    from triggerer.store.listing.views import WatcherView


def measure(config: Path | None, rows: Sequence[WatcherView]) -> Mapping[str, SourceLag]:
    """Return the consumer lag by stream id. The command connects to the sources itself, so it needs credentials."""
    import logging

    import anyio

    from triggerer.operations.connections import share_connections
    from triggerer.operations.consumer_lag import Asked, measure_lags

    settings = settings_for(config)
    asked = [Asked(row.stream_id, row.trigger, row.kwargs) for row in rows]

    async def ask() -> Mapping[str, SourceLag]:
        return await measure_lags(
            asked,
            dags_folder=settings.core.dags_folder,
            allowed_modules=settings.core.allowed_trigger_modules,
        )

    share_connections(settings)
    # The broker clients log each attempt to connect. Users see only the outcome, so turn logging off.
    logging.disable()
    try:
        return anyio.run(ask)
    finally:
        logging.disable(logging.NOTSET)


def shown_lag(lag: SourceLag) -> Any:
    """Return the lag as a table cell."""
    return "unknown" if lag.messages is None else lag.messages


def print_notes(rows: Sequence[WatcherView], lags: Mapping[str, SourceLag]) -> None:
    """Print each stream's note: why its lag is unknown, or how exact the number is."""
    names = {row.stream_id: row.stream for row in rows}
    for stream_id, lag in lags.items():
        if lag.note is not None:
            print_note(f"lag of {names[stream_id]}: {lag.note}")


def fields_of(lag: SourceLag) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a lag for `watchers show`."""
    note = "" if lag.note is None else f" ({lag.note})"
    yield "lag", f"{shown_lag(lag)}{note}"
    for part, count in lag.by_part.items():
        yield f"lag of {part}", count


def with_lag(row: WatcherView, lags: Mapping[str, SourceLag]) -> dict[str, Any]:
    """Return the watcher's JSON fields, with `lag`, `lag_by_part` and `lag_note`."""
    lag = lags[row.stream_id]
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return fields | {"lag": lag.messages, "lag_by_part": dict(lag.by_part), "lag_note": lag.note}
