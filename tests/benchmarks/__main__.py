"""`python -m tests.benchmarks [streams|store|latency|throughput|idle|first-row|all] [--quick]`.

Figures of whole processes on real servers, each next to its aim; see docs/notes/measurements.md.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

import structlog

from tests.benchmarks.report import Figures, Report, surroundings
from tests.benchmarks.scene import Scene, open_scene

BENCHMARKS: Final = ("streams", "store", "latency", "throughput", "idle", "first-row")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("which", nargs="*", default=["all"], metavar="|".join(BENCHMARKS))
    parser.add_argument(
        "--quick", action="store_true", help="seconds for each benchmark, only to see that it works"
    )
    parser.add_argument(
        "--stores", default="sqlite,postgresql", help="one store, or both with a comma"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append the figures as JSON lines"
    )
    arguments = parser.parse_args()
    which = list(BENCHMARKS) if "all" in arguments.which else arguments.which
    stores = arguments.stores.split(",")
    if unknown := {*which, *stores} - {*BENCHMARKS, "sqlite", "postgresql"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    # Parts of the service run in this process. Their log lines, about upgrades and the like, would bury the figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    report = Report(arguments.json)
    report.say(f"{surroundings()}")
    failed = []
    with open_scene(report, stores, quick=arguments.quick) as scene:
        for name in which:
            began = time.monotonic()
            try:
                report.show(_measure(name)(scene))
            except Exception as error:  # noqa: BLE001 (the others may still be measured)
                failed.append(name)
                report.say(f"{name} failed: {type(error).__name__}: {error}")
            report.say(f"{name} took {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _measure(name: str) -> Callable[[Scene], Figures]:
    # Imported only now, so that a benchmark that cannot be imported does not stop the other benchmarks.
    module = import_module(f"tests.benchmarks.{name.replace('-', '_')}")
    measure: Callable[[Scene], Figures] = module.measure
    return measure


if __name__ == "__main__":
    sys.exit(main())
