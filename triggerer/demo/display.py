"""What flows, as a table that is redrawn on a terminal, or as a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Final

import anyio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from triggerer.demo.flow import Flow
from triggerer.demo.progress import ANSWER, JOIN, watched_events
from triggerer.domain.runs import RunState

_REDRAW_S: Final = 0.25
_LINE_EVERY_S: Final = 3.0


async def show(flow: Flow, console: Console) -> None:
    """Show the flow until cancelled, and once more at the end."""
    if console.is_terminal:
        await _redraw(flow, console)
    else:
        await _write_lines(flow, console)


async def _redraw(flow: Flow, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(_table(flow), refresh=True)
                await anyio.sleep(_REDRAW_S)
        finally:
            live.update(_table(flow), refresh=True)


async def _write_lines(flow: Flow, console: Console) -> None:
    try:
        while True:
            console.print(_line(flow), soft_wrap=True)
            await anyio.sleep(_LINE_EVERY_S)
    finally:
        console.print(_line(flow), soft_wrap=True)


def _table(flow: Flow) -> Table:
    total = len(flow.dataset.messages)
    counts = flow.counts
    table = Table(
        title=f"{flow.stage}  ({time.monotonic() - flow.began:.0f} s)", title_justify="left"
    )
    for column in ("messages", "asset events", "lag", "waiting for a run", *_SHORT.values()):
        table.add_column(column, justify="right")
    table.add_row(
        f"{flow.published:,} / {total:,}",
        f"{watched_events(counts):,}",
        f"{flow.lag:,}",
        f"{sum(counts.waiting.values()):,}",
        *(_runs(flow, dag) for dag in _SHORT),
    )
    for asset, (state, error) in sorted(counts.watchers.items()):
        if error:
            table.caption = f"watcher of {asset} is {state}: {error.strip().splitlines()[-1]}"
    return table


def _line(flow: Flow) -> str:
    counts = flow.counts
    runs = ", ".join(f"{name}: {_runs(flow, dag)}" for dag, name in _SHORT.items())
    return (
        f"{time.monotonic() - flow.began:5.1f} s  {flow.stage}: {flow.published:,} messages,"
        f" {watched_events(counts):,} asset events, lag {flow.lag:,}, {runs}"
    )


def _runs(flow: Flow, dag: str) -> str:
    shown = (RunState.SUCCESS, RunState.RUNNING, RunState.QUEUED)
    done, running, queued = (flow.counts.runs.get((dag, state), 0) for state in shown)
    return f"{done} done, {running} running, {queued} queued"


_SHORT: Final = {JOIN: "join runs", ANSWER: "answer runs"}
