"""The output and the exit codes of commands."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from typer.testing import CliRunner

from triggerer.cli import app as commands
from triggerer.cli import main as command
from triggerer.cli.dags.commands import readable_error, readable_schedule
from triggerer.cli.terminal.options import parse_instant
from triggerer.cli.terminal.output import print_fields, print_json, readable_lane, text
from triggerer.errors import ConfigurationError, StoreError, TriggererError

A, B, C = ({"asset": {"name": name, "uri": f"x-{name}"}} for name in "abc")


@pytest.mark.parametrize(
    ("schedule", "written"),
    [
        (None, "-"),
        (A, "a"),
        ({"all": [A, B]}, "a & b"),
        ({"any": [{"all": [A, B]}, C]}, "(a & b) | c"),
        ({"all": [{"any": [A, B]}, {"alias": "x"}]}, "(a | b) & alias x"),
        ({"any": [{"all": [A]}, C]}, "a | c"),
    ],
)
def test_a_schedule_is_shown_as_it_is_written(schedule: Any, written: str) -> None:
    assert readable_schedule(schedule) == written


def test_an_error_in_a_file_is_shown_with_its_line_if_there_is_one() -> None:
    assert readable_error({"file": "a.py", "line": 3, "reason": "no"}) == "a.py:3: no"
    assert readable_error({"file": "a.py", "line": None, "reason": "no"}) == "a.py: no"


def test_an_instant_is_shown_in_utc_and_says_so_whatever_the_zone_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        berlin = timezone(timedelta(hours=1))
        assert text(datetime(2026, 11, 27, 1, tzinfo=UTC)) == "2026-11-27 01:00:00Z"
        assert text(datetime(2026, 11, 27, 1, tzinfo=berlin)) == "2026-11-27 00:00:00Z"
        assert text(datetime.max.replace(tzinfo=UTC)) == "9999-12-31 23:59:59Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_instant_can_be_given_to_an_option_as_it_was_shown() -> None:
    instant = datetime(2026, 11, 27, 1, 2, 3, tzinfo=UTC)
    assert parse_instant(text(instant), "--from") == instant


@pytest.mark.parametrize(
    ("lane", "shown"),
    [
        ('["orders",3]', "orders[3]"),
        ('"a"', "a"),
        ("0", "0"),
        ('["a","b"]', '["a","b"]'),
        ("no JSON", "no JSON"),
    ],
)
def test_a_lane_is_shown_as_people_write_it(lane: str, shown: str) -> None:
    assert readable_lane(lane) == shown


def test_json_is_one_value_with_instants_in_utc(capsysbinary: Any) -> None:
    print_json([{"at": datetime(2026, 1, 2, tzinfo=UTC), "n": 1}])
    assert b'"at": "2026-01-02T00:00:00+00:00"' in capsysbinary.readouterr().out


def test_a_field_of_several_lines_is_indented(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("name", "x"), ("absent", None), ("error", "one\ntwo")])
    assert capsys.readouterr().out == "name   x\nerror  one\n       two\n"


class TestMain:
    """The end of a command: exit code, and one line for what went wrong."""

    def run(self, monkeypatch: pytest.MonkeyPatch, app: Callable[[], None]) -> object:
        monkeypatch.setattr(commands, "app", app)
        with pytest.raises(SystemExit) as ended:
            command.main()
        return ended.value.code

    @staticmethod
    def raising(error: BaseException) -> Callable[[], None]:
        def app() -> None:
            raise error

        return app

    def test_an_error_of_ours_is_a_line_and_a_hint(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = ConfigurationError("it is wrong", hint="mend it")
        assert self.run(monkeypatch, self.raising(error)) == 1
        printed = capsys.readouterr()
        assert printed.err == "triggerer: it is wrong\n  hint: mend it\n"
        assert printed.out == ""

    def test_the_errors_of_a_task_group_are_lines_too(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        nested = ExceptionGroup("", [StoreError("a"), ExceptionGroup("", [TriggererError("b")])])
        assert self.run(monkeypatch, self.raising(nested)) == 1
        assert capsys.readouterr().err == "triggerer: a\ntriggerer: b\n"

    def test_an_error_that_nobody_foresaw_keeps_its_traceback(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = ExceptionGroup("", [StoreError("a"), ValueError("b")])
        monkeypatch.setattr(commands, "app", self.raising(group))
        with pytest.raises(ExceptionGroup) as raised:
            command.main()
        assert raised.value is group

    def test_an_interrupted_command_says_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(monkeypatch, self.raising(KeyboardInterrupt())) == 130
        assert capsys.readouterr().err == ""

    def test_a_reader_that_has_enough_is_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", sys.stdout)  # main replaces it
        assert self.run(monkeypatch, self.raising(BrokenPipeError())) == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("runs list --limit", "--limit"),
        ("dags backfill --cancel", "--cancel"),
        ("dags backfill a --max-active", "--max-active"),
        ("watchers parked show", "ID"),
        ("watchers parked replay", "ID..."),
    ],
)
def test_a_number_that_no_database_can_store_is_wrong_use_of_its_option(
    words: str, named: str
) -> None:
    done = CliRunner().invoke(commands.app, [*words.split(), str(2**63)])
    assert done.exit_code == 2
    assert f"Invalid value for '{named}" in done.output
