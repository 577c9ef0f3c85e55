"""Checks that the simulation still finds each planted bug with the seed that the bug's module states.


`python -m tests.simulation.find_seeds [BUG ...] [--seeds 2000] [--jobs 2] [--write]`

If the stated seed no longer finds the bug, the program searches for another seed. It exits with 1 if there is none.
`--write` puts the new seeds into the files of `tests/simulation/mutations`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.planted import Found, search, state_seed


class Tried(NamedTuple):
    """The result of the search for one bug."""

    found: Found | None
    others: Counter[str]
    """For each rule that is not one of the bug's rules, the number of seeds that broke it. If the number is large, the
    mutation may no longer plant its bug."""
    took_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the stated seeds; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="default: all")
    parser.add_argument(
        "--seeds", type=int, default=2_000, help="the number of seeds to try, from 0 on"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many bugs to search for side by side"
    )
    parser.add_argument(
        "--write", action="store_true", help="write new seeds into the mutations' files"
    )
    given = parser.parse_args(arguments)
    if unknown := set(given.bugs) - set(MUTATIONS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    names = given.bugs or sorted(MUTATIONS)
    context = multiprocessing.get_context("spawn")
    lost = 0
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        all_tried = pool.map(partial(_try, seeds=given.seeds), names)
        for name, tried in zip(names, all_tried, strict=True):
            bug, found = MUTATIONS[name], tried.found
            lost += found is None
            _say(bug, tried)
            if given.write and found is not None and found.seed != bug.seed:
                state_seed(bug, found.seed)
    return 1 if lost else 0


def _try(name: str, *, seeds: int) -> Tried:
    """Try the stated seed and, if it does not find the bug, all seeds from 0 on."""
    bug, others, began = MUTATIONS[name], Counter[str](), time.monotonic()
    found = _search(bug, bug.seed, 1, others) or _search(bug, 0, seeds, others)
    return Tried(found, others, time.monotonic() - began)


def _search(bug: Mutation, start: int, seeds: int, others: Counter[str]) -> Found | None:
    """Find the first seed with which the bug breaks one of its rules. Count in `others` the rules that earlier seeds
    broke."""
    end = start + seeds
    while start < end:
        found = search(bug, start=start, seeds=end - start)
        if found is None or re.fullmatch(bug.rules, found.rule):
            return found
        others[found.rule] += 1
        start = found.seed + 1
    return None


def _say(bug: Mutation, tried: Tried) -> None:
    found = tried.found
    if found is None:
        told = "no seed finds it"
        if tried.others:
            counts = tried.others.most_common()
            broken = ", ".join(f"{rule} {count} times" for rule, count in counts)
            told += f"; other rules were broken: {broken}"
    else:
        told = f"seed {found.seed} finds it ({found.rule})"
        if found.seed != bug.seed:
            told += f", {bug.seed} no longer"
    sys.stdout.write(f"{bug.name}: {told}, {tried.took_s:.1f} s\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
