"""Seeds of the simulation: a share in every run, the rest in `make soak`."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from functools import partial

import pytest

from triggerer.testing.simulation import Violation, simulate
from triggerer.testing.simulation.command import main, outcomes
from triggerer.testing.simulation.kernel.sandbox import sandbox

SHARE = 30
SOAK = 10_000


def assert_kept(seeds: range, *, say: Callable[[str], object] = lambda _: None) -> None:
    """Try seeds on all CPUs, and report the progress after each thousand."""
    began = time.monotonic()
    tried = steps = 0
    for outcome in outcomes(seeds, steps=1000, jobs=os.cpu_count() or 1):
        tried += 1
        steps += outcome.steps
        assert outcome.violation is None, f"seed {outcome.scenario.seed}: {outcome.violation}"
        assert outcome.steps >= 1000
        if tried % 1000 == 0:
            took = time.monotonic() - began
            say(f"{tried} seeds, {steps} steps in {took:.0f} s: {tried / took:.1f} seeds/s")
    assert tried == len(seeds)


@pytest.mark.long
@pytest.mark.rule("S1 to S12, L1 to L3")
def test_a_share_of_the_seeds_keeps_every_promise() -> None:
    assert_kept(range(SHARE))


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_seeds_keep_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(flush=True)
        assert_kept(range(SHARE, SOAK + SHARE), say=partial(print, flush=True))


def test_a_violation_comes_back_from_the_process_that_found_it() -> None:
    found = pickle.loads(pickle.dumps(Violation("S1", "passed")))
    assert (found.rule, found.detail, str(found)) == ("S1", "passed", "S1: passed")


def trace(seed: int) -> list[tuple[float, int, str]]:
    lines: list[tuple[float, int, str]] = []
    with sandbox():
        simulate(seed, trace=lambda *line: lines.append(line))
    return lines


def test_a_seed_decides_everything() -> None:
    first = trace(2)
    assert len(first) > 50
    assert trace(2) == first
    assert trace(5) != first


def test_a_seed_decides_everything_in_other_processes_too() -> None:
    """Hashes, addresses and real time differ between processes. A seed's outcome must not depend on them."""
    seeds = range(4)
    assert list(outcomes(seeds, steps=1000, jobs=2)) == list(outcomes(seeds, steps=1000))


@pytest.mark.soak  # it checks the simulation itself, not the product
def test_the_seeds_together_go_through_every_kind_of_trouble() -> None:
    missing = {
        "CRASH",
        "stopped in order",
        "parse",
        "expire",
        "regain",
        "rebalance",
        "pause_lane",
        "resume_lane",
        "jump",
        "replace",
        "delete all",
        "raises",
        "is cancelled",
        "stalls",
        "returns",
        "rejected=1",
        "stand still",
        "end the guard",
        "failed=1",
        "kill dag",
        "set a host's clock",
        "resume dag",
        "changed dag",
        "nothing is due",
    }
    for seed in range(100):
        lines = [line for _, _, line in trace(seed)]
        missing = {wanted for wanted in missing if not any(wanted in line for line in lines)}
        if not missing:
            break
    assert not missing


def test_many_seeds_leave_messages_events_and_runs_behind() -> None:
    found = list(outcomes(range(10), steps=1000))
    assert sum(outcome.messages for outcome in found) > 50
    assert sum(outcome.events for outcome in found) > 50
    assert sum(outcome.runs for outcome in found) > 20


def test_the_command_reports_its_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--seeds", "3", "--start", "7", "--jobs", "1", "--steps", "300"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("3 seeds kept every promise: ")


def test_a_replay_shows_the_trace_and_the_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--replay", "6", "--steps", "300"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "publish" in told
    assert "scenario: seed=6 " in told
    assert told.endswith("every promise was kept\n")
