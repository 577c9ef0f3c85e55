"""Sees whether each planted bug is still found by the seed that the page states, and searches another where it is not.

`python -m tests.simulation.find_seeds [BUG ...] [--seeds 2000] [--jobs 2] [--write]`

Exits with 1 if a bug has no seed. `--write` puts the new seeds into `docs/simulation.md`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.simulation.planted import RULES, Found, plant, search, state_seeds, stated_seeds

_TIMEOUT_S = 3_600


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the stated seeds; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="default: all")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many to search, from 0 on")
    parser.add_argument("--jobs", type=int, default=1, help="bugs side by side")
    parser.add_argument("--write", action="store_true", help="state new seeds in the page")
    given = parser.parse_args(arguments)
    if unknown := set(given.bugs) - set(RULES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    bugs, stated = given.bugs or sorted(RULES), stated_seeds()
    with ThreadPoolExecutor(given.jobs) as pool:
        tried = pool.map(lambda bug: _try(bug, stated.get(bug), given.seeds), bugs)
        lost = 0
        for bug, (found, others) in zip(bugs, tried, strict=True):
            lost += found is None
            _say(bug, stated.get(bug), found, others)
            if given.write and found is not None and found.seed != stated.get(bug):
                state_seeds({bug: found})
    return 1 if lost else 0


def _try(bug: str, stated: int | None, seeds: int) -> tuple[Found | None, Counter[str]]:
    """The stated seed if it still finds the bug, else the first other that does, if there is one.

    Also how many seeds broke which other rules: a patch that fits may have lost its sense, and fail everywhere.
    """
    others = Counter[str]()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        plant(bug, folder)
        if stated is not None and (found := _search(bug, folder, stated, 1, others)) is not None:
            return found, others
        return _search(bug, folder, 0, seeds, others), others


def _search(bug: str, folder: Path, start: int, seeds: int, others: Counter[str]) -> Found | None:
    """The first seed that breaks one of the bug's rules; counts the `others` that seeds before it break."""
    end = start + seeds
    while start < end:
        found = search(folder, start=start, seeds=end - start, timeout_s=_TIMEOUT_S)
        if found is None or re.fullmatch(RULES[bug], found.rule):
            return found
        others[found.rule] += 1
        start = found.seed + 1
    return None


def _say(bug: str, stated: int | None, found: Found | None, others: Counter[str]) -> None:
    if found is None:
        told = "no seed finds it"
        if others:
            broken = ", ".join(f"{rule} {count} times" for rule, count in others.most_common())
            told += f"; other rules were broken: {broken}"
    elif found.seed == stated:
        told = f"seed {found.seed} finds it ({found.rule})"
    else:
        told = f"seed {found.seed} finds it ({found.rule}), {stated} no longer"
    sys.stdout.write(f"{bug}: {told}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
