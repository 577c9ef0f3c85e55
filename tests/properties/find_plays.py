"""Looks for a play whose runs differ from the runs of a simple model; exits with 1 if there is one.

A play is a random set of partitioned DAGs and a random list of steps (`tests.properties.partition_plays`).

`python -m tests.properties.find_plays [--plays 500] [--seed 0] [--url postgresql+asyncpg://…]`

Without a URL the plays run on SQLite.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import structlog
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.properties.partition_plays import CLOCKS, Drawn, plays
from tests.properties.partition_runs import run_on_postgres, run_on_sqlite
from tests.properties.three_assets import add_assets, fresh_copy
from tests.services.databases.stores import create_migrated_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Try plays; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plays", type=int, default=500, help="the most plays to try")
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed from which the plays are drawn"
    )
    parser.add_argument(
        "--url", help="a PostgreSQL database with the assets, and with a clock that can be set"
    )
    told = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = find_play(told.plays, start=told.seed, url=told.url)
    if found is not None:
        sys.stdout.write(f"play {found} has other runs than the model\n")
        return 1
    sys.stdout.write(f"{told.plays} plays have the runs of the model\n")
    return 0


def find_play(number: int, *, start: int = 0, url: str | None = None) -> int | None:
    """Return the number of the first play that differs from the model; None if no play does."""
    with _stage(url) as run:
        tried = 0

        @seed(start)
        @given(plays(CLOCKS))
        @settings(
            max_examples=number,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def look(play: Drawn) -> None:
            nonlocal tried
            tried += 1
            run(play)

        try:
            look()
        except AssertionError:
            return tried
    return None


@contextmanager
def _stage(url: str | None) -> Iterator[Callable[[Drawn], None]]:
    """A function that runs a play."""
    if url is not None:
        yield lambda play: run_on_postgres(url, play)
        return
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.sqlite"
        anyio.run(add_assets, create_migrated_file(template, Path(folder)))
        yield lambda play: run_on_sqlite(fresh_copy(template), play)


if __name__ == "__main__":
    sys.exit(main())
