"""Kills processes of a service at random moments of its runs, and reads the lines (`Mark`) that the tasks wrote."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tests.acceptance.standalone import Standalone
from tests.services.process import still_alive

ROWS: Final = 40
"""The rows of each output."""
DAG: Final = "writes"

Kill = Callable[[Standalone], bool]
"""Kills a process; returns False if there is none."""


class Mark(NamedTuple):
    """A line that a task wrote. An execution is one call of the task's function, in whatever attempt."""

    run_id: str
    attempt: int
    execution: str
    what: str
    """`begins`, `works` (once for each row), the result of an output, or `ends`."""
    at: float
    """Seconds on the machine's monotonic clock."""


def read_marks(path: Path) -> list[Mark]:
    return sorted(
        (Mark(*json.loads(line)) for line in path.read_text().splitlines()),
        key=lambda mark: mark.at,
    )


def number_of_kills(default: int) -> int:
    return int(os.environ.get("TRIGGERER_KILLS") or default)


def kill_at_random(
    service: Standalone, chance: random.Random, victims: Mapping[str, Kill], *, kills: int
) -> None:
    """Kill processes at random moments of runs, and let every run succeed afterwards.

    Each kind of process is killed about equally often. The pause before a kill is random, and at most as long as a run.
    A failed run is retried, so a later kill may hit it again.
    """
    lasts = {"with a new driver": _time_of_run(service), "with a warm one": _time_of_run(service)}
    done: list[tuple[str, float]] = []
    following: list[str] = []
    while len(done) < kills:
        following = following or chance.sample(list(victims), len(victims))
        _fill(service)
        is_warm = not done or done[-1][0] == "run's process"
        # No condition to wait for: the test needs a random moment.
        time.sleep(chance.uniform(0, lasts["with a warm one" if is_warm else "with a new driver"]))
        at = time.monotonic()
        if _waiting(service) and victims[following[-1]](service):
            done.append((following.pop(), at))
    run_whole(service)
    _print(service, done, lasts)


def _time_of_run(service: Standalone) -> float:
    """Return the seconds that a run takes, without the command that triggers the run."""
    run_whole(service)
    seconds = "(julianday(ended_at) - julianday(queued_at)) * 86400"
    return float(service.records.value(f"SELECT {seconds} FROM dag_run ORDER BY id DESC LIMIT 1"))


def _fill(service: Standalone) -> None:
    """If at most one run is left, retry the failed runs, and add runs until there are five.

    So a kill seldom has to wait for the command that adds a run.
    """
    if _waiting(service) > 1:
        return
    retry_failed(service)
    while _waiting(service) < 5:
        service.run("dags", "trigger", DAG)


def _waiting(service: Standalone) -> int:
    query = "SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running')"
    return int(service.records.value(query))


def run_whole(service: Standalone) -> None:
    """Let every run that is left succeed, and one run more."""
    service.run("dags", "trigger", DAG)
    deadline = time.monotonic() + 240
    while active(service):
        assert time.monotonic() < deadline, service.log.read_text()[-3000:]
        time.sleep(0.2)  # the service is another process, and sends no notice
        retry_failed(service)


def retry_failed(service: Standalone) -> None:
    for (run_id,) in service.records.rows("SELECT run_id FROM dag_run WHERE state = 'failed'"):
        done = service.run("runs", "retry", DAG, run_id)
        assert done.returncode == 0, done.stderr


def active(service: Standalone) -> int:
    query = "SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running', 'failed')"
    return int(service.records.rows(query)[0][0])


def _print(
    service: Standalone, done: Iterable[tuple[str, float]], lasts: Mapping[str, float]
) -> None:
    marks = read_marks(service.folder / "marks")
    former = [0.0, *(at for _, at in done)]
    phases = Counter(
        (victim, _phase(marks, at, since))
        for (victim, at), since in zip(done, former, strict=False)
    )
    print(*(f"a run {kind} takes {seconds:.1f} s" for kind, seconds in lasts.items()), sep=", ")
    for (victim, phase), count in sorted(phases.items()):
        print(f"{count:4} {victim:18} {phase}")


def _phase(marks: list[Mark], at: float, former_kill: float) -> str:
    """Return what the run did at this moment."""
    before = [mark for mark in marks if mark.at <= at]
    last = next((mark for mark in reversed(before) if mark.what == "begins"), None)
    if last is None:
        return "before the task"
    own = [mark for mark in before if mark.execution == last.execution]
    if own[-1].what == "ends" or own[-1].at < former_kill:
        return "between two tasks"
    after_output = [mark.what for mark in reversed(own)]
    rows = next(
        (index for index, what in enumerate(after_output) if what != "works"), len(after_output)
    )
    if rows == 0:
        return "before an output's rows"
    return "among an output's rows" if rows < ROWS else "after an output's rows, at its commit"


def check_marks(marks: list[Mark]) -> None:
    """Check that no attempt calls the task twice, and that no attempt works after the next attempt has begun."""
    begins: dict[str, list[Mark]] = defaultdict(list)
    last: dict[str, float] = {}
    for mark in marks:
        if mark.what == "begins":
            begins[mark.run_id].append(mark)
        last[mark.execution] = mark.at
    calls = Counter((mark.run_id, mark.attempt) for mark in marks if mark.what == "begins")
    assert set(calls.values()) == {1}, calls
    late = {
        (mark.run_id, mark.attempt): f"{last[mark.execution] - following.at:.2f} s after the next"
        for of_run in begins.values()
        for mark, following in pairwise(of_run)
        if last[mark.execution] > following.at
    }
    assert late == {}


def check_ends(service: Standalone) -> int:
    """Check that each run succeeded, with one event, and that no attempt still works; return the number of runs."""
    runs = service.json("runs", "list", "--dag", DAG, "--limit", "0")
    assert {run["state"] for run in runs} == {"success"}
    events = service.json("assets", "events", "--limit", "0")
    assert sorted(event["source_run_id"] for event in events) == sorted(r["run_id"] for r in runs)
    attempts: dict[int, list[str]] = defaultdict(list)
    query = "SELECT run_pk, state FROM run_attempt ORDER BY run_pk, epoch"
    for run, state in service.records.rows(query):
        attempts[run].append(state)
    for *former, final in attempts.values():
        assert final == "success"
        assert set(former) <= {"failed", "killed", "lost"}, former
    assert service.records.value("SELECT count(*) FROM run_launch WHERE ended_at IS NULL") == 0
    check_marks(read_marks(service.folder / "marks"))
    check_quiet(service)
    return len(runs)


def check_quiet(service: Standalone) -> None:
    """Check that no process of a killed service, worker or driver is left, and that no task still computes rows."""
    assert not still_alive(strays(service), within_s=15)
    before = (service.folder / "marks").read_text()
    time.sleep(1)  # a row takes 50 ms
    assert (service.folder / "marks").read_text() == before


def strays(service: Standalone) -> list[psutil.Process]:
    """Return the processes that work in the service's folder and do not descend from the service."""
    found = [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(service.folder)]
    return [one for one in found if one.pid not in {own.pid for own in family(service)}]


def family(service: Standalone) -> list[psutil.Process]:
    """Return the service's process and its descendants, parents before their children."""
    assert service.process is not None
    process = psutil.Process(service.process.pid)
    return [process, *process.children(recursive=True)]


def kill_executor(service: Standalone) -> bool:
    """Kill the service's process. Its children notice by themselves."""
    assert service.process is not None
    service.process.kill()
    service.process.wait()
    service.start()
    return True


def kill_worker(service: Standalone) -> bool:
    """Kill the fork server, whose children are the processes of runs."""
    return kill_one_of(_workers(service)[:1])


def kill_run(service: Standalone) -> bool:
    """Kill a run's process: the older child of the fork server. The younger child waits for the next run."""
    return kill_one_of(sorted(_workers(service)[1:], key=psutil.Process.create_time)[:1])


def kill_driver(service: Standalone) -> bool:
    return kill_one_of(having("java", family(service))[:1])


OWN: Final[Mapping[str, Kill]] = {
    "executor": kill_executor,
    "worker": kill_worker,
    "run's process": kill_run,
    "driver": kill_driver,
}


def _workers(service: Standalone) -> list[psutil.Process]:
    """Return the fork server, and the processes that it has forked for runs."""
    return having("triggerer.worker.main", family(service))


def having(sign: str, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have this word in the first parts of their command."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if any(sign in part for part in process.cmdline()[:4]):
                found.append(process)
    return found


def kill_one_of(processes: Iterable[psutil.Process]) -> bool:
    """Kill the first of these processes that is there; False if none is."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            return True
    return False
