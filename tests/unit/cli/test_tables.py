"""On a narrow terminal a table keeps ids, keys and names whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.views import AT, NAME, RUN_ID, run
from triggerer.cli import assets, config
from triggerer.cli.dags import commands as dags
from triggerer.cli.runs import commands as runs
from triggerer.cli.runs import show as showing
from triggerer.cli.terminal.tables import Column, Kind, fit, print_table
from triggerer.cli.watchers import commands as watchers
from triggerer.store.listing.views import (
    AssetEventView,
    AssetView,
    AttemptView,
    DagView,
    LaunchView,
    PositionView,
    TaskRunView,
    WatcherView,
)

URI = "s3://warehouse/finance/monthly/totals.parquet"

Printed = Callable[[], str]
Terminal = Callable[[int], Printed]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Turns standard output into a terminal of the given width, and returns a function that reads it."""

    def of_width(columns: int) -> Printed:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        return lambda: re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)

    return of_width


def test_a_table_says_when_there_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a",), [], empty="No rows.")
    assert capsys.readouterr().out == "No rows.\n"


def test_a_table_says_when_the_limit_may_have_cut_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a",), [["1"], ["2"]], empty="", limit=2)
    assert "--limit 0" in capsys.readouterr().err
    print_table(("a",), [["1"]], empty="", limit=2)
    assert capsys.readouterr().err == ""


def test_text_that_looks_like_markup_is_printed_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("error",), [["list[int] is not [bold]"]], empty="")
    assert "list[int] is not [bold]" in capsys.readouterr().out


COLUMNS = ("id", "state", Column("at", Kind.MINOR), Column("error", Kind.TEXT))


def test_where_there_is_room_columns_stand_side_by_side(terminal: Terminal) -> None:
    printed = terminal(40)
    print_table(COLUMNS, [["a", "failed", "noon", "a bug"], ["bcd", "ok", None, None]], empty="")
    assert printed() == (
        "id   state   at    error\n"  #
        "a    failed  noon  a bug\n"
        "bcd  ok      -     -\n"
    )


def test_a_column_that_says_nothing_is_left_out_on_a_terminal_alone(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["a", None, None, "a bug"], ["b", None, None, None]]
    print_table(COLUMNS, rows, empty="")
    # A script counts columns.
    assert capsys.readouterr().out.splitlines()[0].split() == ["id", "state", "at", "error"]
    printed = terminal(40)
    print_table(COLUMNS, rows, empty="")
    assert printed() == "id  error\na   a bug\nb   -\n"


def test_a_long_text_goes_beneath_its_row_and_is_broken_between_words(terminal: Terminal) -> None:
    printed = terminal(30)
    error = "there is nothing at /a/path/that/is/rather/long now"
    print_table(
        COLUMNS,
        [["a", "ok", "noon", "a bug"], ["b", "ok", "noon", "a bug"], ["c", "ok", "noon", error]],
        empty="",
    )
    assert printed() == (
        "id  state  at    error\n"
        "a   ok     noon  a bug\n"
        "b   ok     noon  a bug\n"
        "c   ok     noon\n"
        "    error: there is nothing at\n"
        "    /a/path/that/is/rather/long\n"
        "    now\n"
    )


def test_where_most_texts_are_long_they_have_no_column(terminal: Terminal) -> None:
    printed = terminal(20)
    print_table(COLUMNS, [["a", "ok", "noon", "a bug"], ["b", "ok", "noon", "two bugs"]], empty="")
    assert printed() == (
        "id  state  at\n"  #
        "a   ok     noon\n"
        "    error: a bug\n"
        "b   ok     noon\n"
        "    error: two bugs\n"
    )


def test_minor_columns_are_left_out_with_a_note(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(12)
    print_table(COLUMNS, [["abc", "failed", "noon", None]], empty="")
    shown = capsys.readouterr()
    assert "noon" not in shown.out
    assert shown.err == "These columns do not fit and are left out: at. --json shows all.\n"


def test_an_id_that_finds_no_room_goes_beneath_its_row(terminal: Terminal) -> None:
    printed = terminal(12)
    print_table(("id", "run", "state"), [["abc", "a-long-run-id", "ok"]], empty="")
    assert printed() == "id   state\nabc  ok\n    run: a-long-run-id\n"


def test_an_id_that_is_wider_than_the_terminal_is_left_to_it(terminal: Terminal) -> None:
    printed = terminal(10)
    print_table(("id", "run"), [["a-very-long-id", "a-long-run-id"]], empty="")
    assert printed() == "id\na-very-long-id\n    run: a-long-run-id\n"


def test_elsewhere_than_on_a_terminal_a_row_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    long = "x " * 10_000
    print_table(COLUMNS, [["a", "ok", "noon", f"{long}\nend"]], empty="")
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["id", "state", "at"],
        ["a", "ok", "noon"],
    ]


def test_wide_characters_take_the_room_that_a_terminal_gives_them() -> None:
    assert fit([Column("a"), Column("b")], [["日本", "x"]], None) == {0: 4, 1: 1}


def test_remaining_room_goes_to_the_text_that_needs_least() -> None:
    columns = [Column("k"), Column("v", Kind.TEXT), Column("f", Kind.TEXT)]
    rows = [["k", "v", "f"], ["k", "v", "f"], ["k", "v" * 50, "f" * 5]]
    assert fit(columns, rows, 20) == {0: 1, 1: 10, 2: 5}


ERROR = 'task x failed: Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1'
DAG = DagView(
    dag_id=NAME,
    path="finance/orders.py",
    description=None,
    tags=[],
    schedule={"any": [{"asset": {"name": NAME}}, {"asset": {"name": "daily"}}]},
    max_active_runs=1,
    events_per_run=None,
    params={},
    tasks=[],
    is_paused=False,
    is_stale=False,
    file_missing_since=None,
    queued_events=0,
    last_run_id=RUN_ID,
    last_run_state="success",
)
ASSET = AssetView(1, NAME, URI, "asset", {}, "finance/orders.py", AT)
EVENT = AssetEventView(1, NAME, URI, {"n": 1}, AT, None, NAME, RUN_ID, "publish", None, None)
GROUP = "triggerer-d20f3d9580196b60"
WATCHER = WatcherView(
    asset_name=NAME,
    name="orders_above_1000_euros",
    trigger="watchers.kafka.KafkaEventTrigger",
    stream=f"kafka orders (group {GROUP})",
    stream_id="f" * 64,
    state="failing",
    error="BrokerUnavailable: nobody there",
    owner="vm:17391:7e812030",
    kwargs={},
    path="finance/orders.py",
    updated_at=AT,
    behind=1_234,
    behind_since=AT,
    traceback=None,
    positions=[PositionView('["orders",3]', ["topic-id", 17], 1_234, AT)],
    set_aside=3,
    guarantee="at_least_once",
)
SESSION = "6e0b1c0a-8a2e-5f0e-9f0d-0c6a4a5c1b2d"
_LAUNCH = LaunchView("tag", "connect", None, None, SESSION, None, "killed", "stopped", AT, AT)
ATTEMPTS = [
    AttemptView(
        1, 1, "killed", "vm:1:7e812030", "tag", "its executor died", AT, AT, AT, SESSION,
        "http://host:4040", [_LAUNCH],
    ),
    AttemptView(2, 3, "failed", "vm:2:7e812031", "tag-2", ERROR, AT, AT, AT, None, None, []),
]  # fmt: skip
TASK = TaskRunView("publish_to_the_warehouse", "failed", 1, AT, AT, ERROR)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize(
    ("module", "command", "found", "whole"),
    [
        (runs, runs.list_, [run(None), run(ERROR)], [NAME, RUN_ID, "task x failed: KeyError: 1"]),
        (dags, dags.list_, ([DAG], [], []), [NAME]),
        (assets, assets.list_, [ASSET], [NAME, URI]),
        (assets, assets.events, [EVENT], [NAME, RUN_ID, f"{NAME}.publish", '{"n":1}']),
        (watchers, watchers.list_, [WATCHER], [NAME, WATCHER.name, GROUP]),
        (
            showing,
            lambda: showing.show(NAME, RUN_ID),
            (run(ERROR), ATTEMPTS, [TASK]),
            [NAME, RUN_ID, TASK.task_id, ERROR.splitlines()[0], SESSION, "http://host:4040"],
        ),
    ],
    ids=["runs", "dags", "assets", "events", "watchers", "run"],
)
def test_at_every_width_what_one_copies_is_whole(
    monkeypatch: pytest.MonkeyPatch,
    terminal: Terminal,
    module: Any,
    command: Callable[[], None],
    found: Any,
    whole: list[str],
    width: int,
) -> None:
    for name in ("read", "read_list"):
        monkeypatch.setattr(module, name, lambda config, ask, **_: found, raising=False)
    printed = terminal(width)
    command()
    shown = printed()
    assert [text for text in whole if text not in shown] == []


@pytest.mark.parametrize("width", [80, 120])
def test_the_settings_keys_and_values_are_whole(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "triggerer.toml"
    home = tmp_path / "a-home-whose-name-is-long"
    file.write_text(f'[core]\nhome = "{home}"\n')
    printed = terminal(width)
    config.show(config=file)
    lines = printed().splitlines()
    assert "triggerer.shared_stream_subscriber_queue_size  1024" in "\n".join(lines)
    (at,) = (number for number, line in enumerate(lines) if line.startswith("core.home"))
    assert lines[at].endswith(" triggerer.toml:2")
    assert str(home) in lines[at] + lines[at + 1]
