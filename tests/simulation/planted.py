"""The planted bugs: patches in `bugs/`, the rules that may find them, and the seeds that the page states."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import triggerer

BUGS = Path(__file__).parent / "bugs"
PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
_ROW = re.compile(r"^\| ([^|]+) \| (\d+) \| ([^|]+) \|$", re.MULTILINE)
RULES: dict[str, str] = {
    "a_busy_filter_is_spared_what_it_looks_for": "S2/S7|S5",
    "a_cancellation_ends_the_pump_in_silence": "L1",
    "a_claim_starves_a_stream": "L1",
    "a_file_that_is_replaced_counts_as_deleted": "S11",
    "a_forgotten_pause_is_not_told_again": "S9",
    "a_guard_has_no_deadline": "S12",
    "a_host_ignores_its_capacity": "S9",
    "a_host_keeps_what_outgrew_its_capacity": "L1|L3|S9",
    "a_lane_is_paused_while_it_is_being_resumed": "S9",
    "a_late_commit_is_skipped_by_a_cursor": "L1",
    "a_lease_is_compared_by_its_owner_alone": "S6|L1",
    "a_lost_lease_leaves_a_draining_stream": "S6|S3",
    "a_lost_lease_is_used_once_more": "S6",
    "a_new_stream_opens_while_files_are_read": "S11",
    "a_paused_lane_goes_beyond_its_bound": "S9",
    "a_relieved_lane_is_never_resumed": "L1",
    "a_reported_lane_is_finished_twice": "S3",
    "a_plan_is_carried_out_whatever_has_changed": "S4|S9",
    "a_sibling_misses_the_restart_cohort": "S3|S2/S7",
    "a_watcher_in_back_off_misses_what_its_sibling_commits": "S3|S2/S7",
    "advance_again_after_an_advance_raised": "L1|S1|S9",
    "advance_with_nobody_subscribed": "S1",
    "an_advance_that_hangs_is_waited_for": "L1",
    "an_executor_counts_its_lease_from_the_answer": "S12",
    "an_owner_does_not_look_at_its_own_clock": "S6",
    "commit_past_a_failed_position": "S1",
    "events_at_the_cap_wait_for_ever": "L1",
    "every_parse_makes_the_triggers_anew": "L4",
    "shutdown_counts_as_handled": "S2/S7",
    "the_fast_path_drops_what_comes_while_it_looks": "S5",
    "two_schedulers_one_event_two_runs": "S4|S9",
    "what_did_not_grow_gives_way": "L4",
    "what_is_declared_meanwhile_goes_beyond_the_capacity": "S9",
    "what_is_replaced_goes_before_its_successor_is_loaded": "S11",
    "what_nobody_could_read_concerns_nobody": "S2/S7",
    "a_gap_at_the_seam": "S13|S2/S7",
    "a_repeat_at_the_seam": "S13",
    "the_bound_of_what_is_parked_is_ignored": "S9",
    "memory_passes_over_what_made_room": "S13|S2/S7",
    "a_live_message_overtakes_what_lies_behind": "S13|S2/S7",
    "a_position_moves_before_its_events_are_durable": "S13|S2/S7",
    "a_position_is_lost_at_a_change_of_owner": "S13|S2/S7",
    "a_lane_of_a_queue_is_remembered_for_ever": "L5",
    "a_poll_misses_the_room_that_comes_before_it_waits": "L1",
    "a_lane_that_one_fills_is_not_looked_at": "L6",
    "a_large_message_counts_as_one_event": "L6",
    "a_row_stays_until_the_next_message": "L5",
    "a_row_stays_behind_places_without_a_message": "L5",
    "a_later_owner_knows_no_places_without_a_message": "L5",
    "who_catches_up_passes_what_comes_when_the_lease_is_over": "S13|S2/S7",
    "who_has_caught_up_is_shown_as_catching_up": "L5",
    "what_is_kept_in_memory_for_a_deleted_watcher_stays": "L5",
    "what_is_made_again_has_its_ordinary_key": "S13",
    "who_is_set_back_reads_nothing_again": "S13|L1",
    "a_row_goes_before_the_broker_was_advanced": "S13|S2/S7",
    "a_row_goes_before_what_has_failed_comes_again": "S13",
    "a_row_that_was_read_before_it_went_counts": "S13|S2/S7",
    "a_sweep_asked_for_during_a_sweep_is_forgotten": "L1",
    "another_owner_tries_no_others_first": "S13",
    "who_has_fallen_behind_is_waited_for": "L1",
    "one_falls_behind_beyond_what_comes_again": "S13|S2/S7",
    "only_the_first_that_failed_is_remembered": "S13|S2/S7",
    "who_is_back_reads_what_is_not_decided": "S13",
    "who_becomes_active_is_not_waited_for": "S3|S1|S2/S7",
    "a_kept_message_goes_before_its_events_are_durable": "S13|S2/S7",
    "a_repeat_at_the_bound_is_refused": "S9|S13|L1",
    "what_is_held_is_submitted_before_it_is_answered": "S13|L1|S2/S7",
    "who_has_caught_up_is_forgotten_too_soon": "S13|L1",
    "a_live_message_overtakes_what_is_kept": "S13|L1",
    "what_is_kept_is_lost_at_a_change_of_owner": "S13|L1|S2/S7",
    "a_lane_waits_for_ever_behind_what_was_set_aside": "L1",
    "a_message_is_blamed_though_nothing_else_passes": "S13",
    "a_message_is_set_aside_under_a_key_of_its_own": "S13|S4|L1",
    "a_position_passes_what_is_being_set_aside": "S13",
    "a_replayed_message_goes_before_its_events_are_durable": "S13",
    "bytes_of_others_go_with_a_message": "S13",
    "the_next_message_is_blamed_too": "S13",
    "what_fails_again_is_gone": "S13",
    "what_is_replayed_is_made_again": "S4",
    "a_due_moment_goes_before_its_run_is_stored": "T5|T2|L2",
    "a_due_moment_is_lost_at_the_cap": "T5|T2|L2",
    "a_due_moment_is_read_from_the_wrong_clock": "T3|T5",
    "a_missed_tick_is_forgotten": "T5|L2",
    "a_run_is_made_on_a_stale_look": "S9|S4|T1|T4",
    "catch_up_skips_one": "T2",
    "intervals_of_a_wrong_future_are_run_again": "T1",
    "nobody_wakes_at_a_due_moment": "L2",
    "many_plans_are_carried_out_whatever_has_changed": "S4|S9|T1|T2|T4|T5",
    "a_deadline_is_over_at_once": "P2",
    "a_deadline_wakes_nobody": "L2",
    "a_key_that_has_run_waits_for_all_its_parts_again": "L2",
    "a_quiet_period_counts_from_the_first_event": "P4",
    "a_share_that_a_run_took_counts_again": "P1|P4",
    "keys_are_divided_without_a_lock": "P1|P3|T4|S9",
    "parts_of_the_last_look_are_forgotten": "L2",
    "a_shared_trigger_goes_on_without_who_has_left": "S13|S2/S7|S11",
    "only_the_first_watcher_of_a_trigger_is_known_to_be_behind": "S13|S2/S7|L5",
    "who_was_behind_gets_nothing_of_a_shared_trigger": "S13|S2/S7",
    "a_key_is_that_of_the_instant_of_the_run": "T6",
    "many_planned_runs_lose_their_keys": "T6",
}
"""By bug, a pattern of the rules of which one has to be broken."""


class Found(NamedTuple):
    """A seed that breaks a promise."""

    seed: int
    rule: str


def stated_seeds() -> dict[str, int]:
    """By bug, the seed that the page says finds it."""
    rows = _ROW.findall(PAGE.read_text())
    return {bug.replace(" ", "_"): int(seed) for bug, seed, _ in rows}


def state_seeds(found: Mapping[str, Found]) -> None:
    """Write other seeds, and what they break, into the page."""

    def row(line: re.Match[str]) -> str:
        other = found.get(line[1].replace(" ", "_"))
        return line[0] if other is None else f"| {line[1]} | {other.seed} | {other.rule} |"

    PAGE.write_text(_ROW.sub(row, PAGE.read_text()))


def plant(bug: str, folder: Path) -> None:
    """Copy the package into a folder, with the bug."""
    apply(BUGS / f"{bug}.patch", folder)


def apply(patch: Path, folder: Path) -> None:
    """Copy the package into a folder, with what a patch changes."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(triggerer.__file__).parent, folder / "triggerer", ignore=ignored)
    subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)


def search(folder: Path, *, start: int, seeds: int, timeout_s: float) -> Found | None:
    """Run the simulation of a planted package; None: these seeds kept every promise.

    Raises:
        AssertionError: It ended in another way.
        subprocess.TimeoutExpired: It took too long.
    """
    options = ["--start", str(start), "--seeds", str(seeds), "--jobs", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "triggerer.testing.simulation", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if ran.returncode == 0:
        return None
    said = re.match(r"seed (\d+) at step \d+: (\S+): ", ran.stdout)
    assert said is not None, ran.stdout + ran.stderr
    return Found(int(said[1]), said[2])
