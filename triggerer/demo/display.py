"""Shows the demo's progress: on a terminal as a table that is redrawn, and elsewhere as a line every three seconds."""

from __future__ import annotations

import time
from typing import Final

import anyio
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from triggerer.demo.flow import Flow
from triggerer.demo.progress import ANSWER, JOIN, watched_events
from triggerer.domain.runs import RunState

_REDRAW_S: Final = 0.25
_LINE_EVERY_S: Final = 3.0


async def show(flow: Flow, console: Console) -> None:
    """Show the progress until cancelled, and the final state at the end."""
    if console.is_terminal:
        await _redraw(flow, console)
    else:
        await _write_lines(flow, console)


async def _redraw(flow: Flow, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(_screen(flow), refresh=True)
                await anyio.sleep(_REDRAW_S)
        finally:
            live.update(_screen(flow), refresh=True)


async def _write_lines(flow: Flow, console: Console) -> None:
    try:
        while True:
            console.print(_line(flow), soft_wrap=True)
            await anyio.sleep(_LINE_EVERY_S)
    finally:
        console.print(_line(flow), soft_wrap=True)


def _screen(flow: Flow) -> Group:
    # The status is not the table's title, because Rich would break it at the table's width.
    status = f"{flow.status} ({time.monotonic() - flow.began:.0f} s)"
    return Group(Text(status, style="italic"), _table(flow))


def _table(flow: Flow) -> Table:
    counts = flow.counts
    # One label and value per line fit on the narrowest terminal.
    table = Table(show_header=False, min_width=60)
    table.add_row("messages published", f"{flow.published:,} of {len(flow.dataset.messages):,}")
    table.add_row("reserved for the live part", f"{flow.reserved:,}")
    table.add_row("asset events", f"{watched_events(counts):,}")
    table.add_row("messages without an event", f"{flow.without_event:,}")
    table.add_row("events waiting for a run", f"{sum(counts.waiting.values()):,}")
    for dag, name in _SHORT.items():
        table.add_row(name, _runs(flow, dag) or "none yet")
    for asset, (state, error) in sorted(counts.watchers.items()):
        if error:
            table.add_row(f"watcher of {asset}", f"{state}: {error.strip().splitlines()[-1]}")
    return table


def _line(flow: Flow) -> str:
    """Return the progress in one line. Leave out a zero count of runs or of messages without an event."""
    counted = [f"{flow.published:,} messages", f"{watched_events(flow.counts):,} asset events"]
    if flow.without_event:
        counted.append(f"{flow.without_event:,} without an event yet")
    runs = [f"; {name}: {shown}" for dag, name in _SHORT.items() if (shown := _runs(flow, dag))]
    took = time.monotonic() - flow.began
    return f"{took:5.1f} s  {flow.status}; {', '.join(counted)}{''.join(runs)}"


def _runs(flow: Flow, dag: str) -> str:
    """Return the number of the DAG's runs in each state, such as `3 done, 1 running`; empty without runs."""
    counts = {name: flow.counts.runs.get((dag, state), 0) for state, name in _STATES.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


_STATES: Final = {
    RunState.SUCCESS: "done",
    RunState.FAILED: "failed",
    RunState.RUNNING: "running",
    RunState.QUEUED: "queued",
}
_SHORT: Final = {JOIN: "join runs", ANSWER: "answer runs"}
