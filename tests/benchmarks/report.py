"""Prints figures as a table for people, and as JSON lines for comparisons."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psutil
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
"""One row of a table: the figures by column. All rows of a table have the same columns."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one benchmark."""

    benchmark: str
    title: str
    rows: tuple[Row, ...]
    note: str = ""
    """The aims, and what a reader must know to understand the figures."""


def surroundings() -> dict[str, Any]:
    """Describe the machine, the commit and the time now, with the load of the machine and the time of an fsync."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "fsync_ms": _fsync_ms(),
    }


def _fsync_ms(count: int = 100) -> list[float]:
    """Return the p50 and p99 of an fsync of one page, in ms. A commit needs an fsync, so no commit can be faster."""
    with tempfile.NamedTemporaryFile(prefix="triggerer-bench-") as file:
        took = []
        for number in range(count):
            os.pwrite(file.fileno(), bytes(4096), number * 4096)
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    took.sort()
    return [round(percentile(took, percent), 2) for percent in (50, 99)]


class Report:
    """Prints figures at once, and appends them to the file `json_lines`, so that an abort loses nothing."""

    def __init__(self, json_lines: Path | None) -> None:
        console = Console()
        # In a file a table may be wider than a terminal.
        self._console = console if console.is_terminal else Console(width=180)
        self._json_lines = json_lines

    def say(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False)

    def show(self, figures: Figures) -> None:
        where = surroundings()
        table = Table(title=figures.title, title_justify="left", caption_justify="left")
        table.caption = (
            f"{figures.note}\nload average at the end: {where['load_average']}; an fsync took "
            f"{where['fsync_ms']} ms (p50, p99)"
        )
        for column in figures.rows[0]:
            is_number = isinstance(figures.rows[0][column], int | float)
            table.add_column(column, justify="right" if is_number else "left")
        for row in figures.rows:
            table.add_row(*map(_shown, row.values()))
        self._console.print(table)
        if self._json_lines is not None:
            with self._json_lines.open("ab") as file:
                for row in figures.rows:
                    named = {column.replace("\n", " "): figure for column, figure in row.items()}
                    line = {"benchmark": figures.benchmark, **where, **named}
                    file.write(orjson.dumps(line) + b"\n")


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """Return a percentile by the nearest rank; NaN if there are no values."""
    if not sorted_values:
        return math.nan
    return sorted_values[max(0, math.ceil(len(sorted_values) * percent / 100) - 1)]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "-"
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
