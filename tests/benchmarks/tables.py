"""Puts measured figures into DOCUMENT: `python -m tests.benchmarks.tables FIGURES.jsonl [DOCUMENT]`.

DOCUMENT is docs/notes/measurements.md by default. Each of its tables is between `<!-- figures: BENCHMARK -->` and
`<!-- end -->`. The benchmark's newest figures replace the table. If FIGURES.jsonl has no figures of the benchmark, the
table stays.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

_WHERE: Final = (
    "benchmark", "at", "commit", "cores", "memory_gib", "python", "load_average", "fsync_ms",
)  # fmt: skip
_PLACE: Final = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path)
    parser.add_argument(
        "document", type=Path, nargs="?", default=Path("docs", "notes", "measurements.md")
    )
    arguments = parser.parse_args()
    tables = newest_tables(arguments.figures.read_bytes().splitlines())

    def filled(place: re.Match[str]) -> str:
        table = tables.get(place[2])
        return place[0] if table is None else f"{place[1]}{table}{place[3]}"

    arguments.document.write_text(_PLACE.sub(filled, arguments.document.read_text()))


def newest_tables(lines: Iterable[bytes]) -> dict[str, str]:
    """Return a Markdown table of each benchmark's last run, with its time and machine, by the benchmark's name."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        row = orjson.loads(line)
        rows = runs.setdefault(row["benchmark"], [])
        if rows and rows[-1]["at"] != row["at"]:
            rows.clear()
        rows.append(row)
    return {name: _table(rows) for name, rows in runs.items()}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    columns = [column for column in rows[0] if column not in _WHERE]
    first = rows[0]
    where = (
        f"Measured {first['at'][:16].replace('T', ' ')} UTC at {first['commit']}; load average at the end "
        f"{', '.join(map(str, first['load_average']))};\nan fsync took {first['fsync_ms'][0]} ms (p50), "
        f"{first['fsync_ms'][1]} ms (p99)."
    )
    alignment = ["--:" if isinstance(first[column], int | float) else ":--" for column in columns]
    lines = [columns, alignment, *([_shown(row[column]) for column in columns] for row in rows)]
    return "\n".join(["", *(f"| {' | '.join(line)} |" for line in lines), "", where, ""])


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
