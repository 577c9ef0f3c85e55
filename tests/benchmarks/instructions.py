"""Compares two checkouts by the processor instructions that a message takes, as callgrind counts them.

`python -m tests.benchmarks.instructions TREE latency|events [--store sqlite|postgresql] [--rate 5] [--seconds 40]`

TREE is a checkout of an earlier commit. It is compared with the checkout that runs this module.

Between two starts of the same code, the processor time of a message differs by 10 %, but the number of instructions
only by 1 %. Callgrind counts neither instructions of the kernel nor cache misses.

The benchmark needs Debian's package `valgrind`. It makes the service about fifty times slower, so the rate is low.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.benchmarks.dags import that_does_nothing, that_starts_nothing
from tests.benchmarks.latency import publish_at
from tests.benchmarks.report import Figures, Report, Row
from tests.benchmarks.scene import Scene, open_scene
from tests.benchmarks.service import Service

_HERE: Final = Path(__file__).resolve().parents[2]
_CALLGRIND: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes")
_WARM_UP: Final = 30
_IDLE_S: Final = 20
_SETTLE_S: Final = 2

# The service's process runs this code first:
# - Valgrind lacks pidfd_open(). The replacement never reports the end of a process, and no process ends here.
# - Valgrind does not follow child processes. The replacement of Popen starts each worker under its own Valgrind.
_SHIM: Final = """
import os, subprocess, sys

kept = []

def pidfd_open(pid, flags=0):
    readable, writable = os.pipe()
    kept.append(writable)
    return readable

if "standalone" in sys.orig_argv:
    os.pidfd_open = pidfd_open
    begin = subprocess.Popen.__init__

    def start(self, args, *others, **options):
        if "triggerer.worker.main" in list(args):
            args = [*{prefix!r}, *args]
        begin(self, args, *others, **options)

    subprocess.Popen.__init__ = start
"""


def main() -> int:
    arguments = _arguments()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: `apt-get install valgrind` on Debian")
    report = Report(arguments.json)
    with open_scene(report, [arguments.store], quick=False) as scene:
        before = _count(scene, arguments, arguments.tree.resolve())
        after = _count(scene, arguments, _HERE)
    names = sorted({*before, *after})
    rows = [_row(name, before.get(name, 0), after.get(name, 0)) for name in names]
    rows.append(_row("all", sum(before.values()), sum(after.values())))
    title = f"Thousands of instructions for each message, {arguments.what}, {arguments.store}"
    report.show(Figures("instructions", title, tuple(rows)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, help="a checkout of the commit before")
    parser.add_argument("what", choices=["latency", "events"])
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--rate", type=int, default=5, help="messages/s")
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="append the figures to this file")
    return parser.parse_args()


def _count(scene: Scene, arguments: argparse.Namespace, tree: Path) -> Mapping[str, float]:
    """Return how many thousand instructions a message takes in the event loop, in other threads, and in the workers."""
    topic = scene.new_topic()
    has_runs = arguments.what == "latency"
    make = that_does_nothing if has_runs else that_starts_nothing
    out = scene.new_folder("callgrind")
    with scene.service(make(topic, f"{topic}-group"), arguments.store, tree=tree) as service:
        service.prefix = _callgrind(out, "service")
        service.extra_path = out
        (out / "sitecustomize.py").write_text(_SHIM.format(prefix=_callgrind(out, "worker")))
        service.start("none")
        service.wait_until(
            lambda: _is_watching(service), within_s=300, what="the watcher runs", every_s=1
        )
        publish_at(scene, topic, rate=arguments.rate, seconds=_WARM_UP / arguments.rate, first=0)
        _wait_for(service, _WARM_UP, has_runs=has_runs)
        _control("--instr=on")
        _control("--zero")
        # Count while the service is idle, to subtract these instructions from the load's.
        time.sleep(_IDLE_S)
        _control("--dump=idle")
        began = time.monotonic()
        paced = publish_at(
            scene, topic, rate=arguments.rate, seconds=arguments.seconds, first=_WARM_UP
        )
        _wait_for(service, _WARM_UP + len(paced.messages), has_runs=has_runs)
        # The work after the last message, such as the commit at the broker, must count too. Nothing reports its end.
        time.sleep(_SETTLE_S)
        took = time.monotonic() - began
        _control("--dump=load")
        service.kill()
    idle, load = _dumped(out, "idle"), _dumped(out, "load")
    return {
        name: (counted - idle[name] * took / _IDLE_S) / len(paced.messages) / 1e3
        for name, counted in load.items()
    }


def _callgrind(out: Path, name: str) -> list[str]:
    return [*_CALLGRIND, f"--callgrind-out-file={out}/{name}.%p", f"--log-file={out}/{name}.log"]


def _control(command: str) -> None:
    """Send a command to all programs that run under callgrind."""
    subprocess.run(["callgrind_control", command], check=True, capture_output=True)


def _is_watching(service: Service) -> bool:
    return bool(service.ask("SELECT count(*) FROM watcher WHERE state = 'running'"))


def _wait_for(service: Service, events: int, *, has_runs: bool) -> None:
    if has_runs:
        service.wait_until_done(events, within_s=300)
        return
    service.wait_until(
        lambda: service.ask("SELECT count(*) FROM asset_event") == events,
        within_s=300,
        what=f"{events} events",
    )


def _dumped(out: Path, what: str) -> Counter[str]:
    """Return the instructions of a dump, for the event loop, the service's other threads and the workers."""
    found = Counter[str]()
    for file in out.glob("*.*.*"):
        text = file.read_text(errors="replace")
        if f"desc: Trigger: dump {what}" not in text:
            continue
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        thread = re.search(r"^thread: (\d+)", text, re.MULTILINE)
        assert total is not None
        assert thread is not None
        role = "event loop" if thread[1] == "1" else "the service's other threads"
        found[role if file.name.startswith("service") else "workers"] += int(total[1])
    return found


def _row(name: str, before: float, after: float) -> Row:
    return {"": name, "before": before, "after": after, "ratio": after / before if before else 0.0}


if __name__ == "__main__":
    sys.exit(main())
