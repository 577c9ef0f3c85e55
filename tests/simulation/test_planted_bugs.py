"""Bugs that others had, and some of our own, put one at a time into a copy of the package: simulation finds each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import triggerer
from tests.simulation import planted
from tests.simulation.planted import BUGS, RULES, plant, search, stated_seeds

# Those that plays find, too.
PATCHES = Path(__file__).parents[1].glob("*/bugs/*.patch")
SEEDS = 2_000
"""So many are tried at most, after the one that the page says caught it before."""
TIMEOUT_S = 280
# The others go through the soak: copying, starting and searching takes some seconds for each.
QUICK = {
    "a_gap_at_the_seam",
    "a_kept_message_goes_before_its_events_are_durable",
    "a_position_moves_before_its_events_are_durable",
    "catch_up_skips_one",
    "commit_past_a_failed_position",
    "events_at_the_cap_wait_for_ever",
    "every_parse_makes_the_triggers_anew",
    "shutdown_counts_as_handled",
    "two_schedulers_one_event_two_runs",
}


def test_every_planted_bug_has_its_patch() -> None:
    assert {patch.stem for patch in BUGS.glob("*.patch")} == set(RULES)
    assert set(stated_seeds()) == set(RULES)


@pytest.mark.parametrize("patch", sorted(PATCHES), ids=lambda patch: patch.stem)
def test_a_patch_still_fits_the_code(patch: Path) -> None:
    root = Path(triggerer.__file__).parent.parent
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=root, check=True)


@pytest.mark.rule(
    "`advance` raises once, then succeeds for a later position",
    "message k is redelivered to a sibling alone while its watcher waits in back-off",
    "S1 to S12, L1 to L3",
)
@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=() if bug in QUICK else pytest.mark.soak) for bug in sorted(RULES)],
)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    plant(bug, tmp_path)
    found = search(tmp_path, start=stated_seeds()[bug], seeds=1, timeout_s=TIMEOUT_S)
    if found is None:
        # A seed means something else as soon as the order of random draws changes.
        found = search(tmp_path, start=0, seeds=SEEDS, timeout_s=TIMEOUT_S)
    assert found is not None, f"{SEEDS} seeds kept every promise"
    assert re.fullmatch(RULES[bug], found.rule), found


def test_only_the_seeds_that_were_found_are_stated_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| Bug | Seed | Rule |\n|---|---|---|\n| a bug | 3 | S1 |\n| b bug | 4 | S2 |\n"
    )
    monkeypatch.setattr(planted, "PAGE", page)
    planted.state_seeds({"b_bug": planted.Found(17, "S13")})
    assert stated_seeds() == {"a_bug": 3, "b_bug": 17}
    assert page.read_text().endswith("| a bug | 3 | S1 |\n| b bug | 17 | S13 |\n")
