"""The benchmark with sick watchers: its check finds missing and repeated events, and its DAG files are valid."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.falling_behind.sick_dags import SICK, DagFiles
from tests.benchmarks.falling_behind.sick_events import Event, expected_of, judge
from tests.benchmarks.falling_behind.stamped_load import Stretch
from triggerer.dag_processing.describing import parse_file

STRETCHES = [Stretch(0, 30, 1.0, 0.0), Stretch(30, 60, 1.0, 0.0)]


def events(*numbers: int) -> list[Event]:
    """There are two partitions: message n is at offset n // 2 of partition n % 2."""
    return [Event(at, number, 0, number % 2, number // 2) for at, number in enumerate(numbers)]


def test_a_healthy_watcher_has_its_digit_of_all_messages_and_a_sick_one_has_its_own() -> None:
    assert expected_of("well-13", STRETCHES, STRETCHES[1:]) == {3, 13, 23, 33, 43, 53}
    assert expected_of("slow", STRETCHES, STRETCHES[1:]) == {30, 40, 50}


def test_partitions_may_be_interleaved_in_any_way() -> None:
    assert judge(events(1, 3, 0, 5, 2, 4), {0, 1, 2, 3, 4, 5}).is_right


def test_missing_unexpected_doubled_and_disordered_events_are_counted() -> None:
    verdict = judge(events(0, 4, 2, 2, 7), {0, 1, 2, 3, 4})
    assert (verdict.missing, verdict.unexpected) == (2, 1)
    assert (verdict.doubled, verdict.out_of_order) == (1, 2)
    assert not verdict.is_right


def test_the_files_of_the_sick_can_be_read(tmp_path: Path) -> None:
    files = DagFiles(tmp_path, "a-topic", healthy=2, sick=SICK)
    parsed = [parse_file(one.name, files.folder, []) for one in files.folder.glob("*.py")]
    assert [error for one in parsed for error in one.errors] == []
    assert sum(len(one.dags) for one in parsed) == 3
