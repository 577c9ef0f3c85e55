"""A run that waits for its cluster does not look like one that works."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.cli.views import AT, NAME, RUN_ID, run
from triggerer.cli.runs import commands as runs
from triggerer.cli.runs import show as showing
from triggerer.store.listing.views import RunView

REASON = "an executor on spark://h:7077 for 2 tasks; it needs 1 core and 1g of memory (look there)"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[RunView]:
    """The rows that the commands read from the store."""
    works = replace(run(None), run_id="works", state="running", ended_at=None)
    waits = replace(
        works, run_id=RUN_ID, waiting_for=REASON, waiting_since=AT + timedelta(seconds=1)
    )
    return [works, waits]


def test_the_list_tells_it_from_those_that_work(
    found: list[RunView], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "read_list", lambda config, ask, **_: found)
    runs.list_()
    head, works, waits = capsys.readouterr().out.splitlines()
    assert head.endswith("waiting for")
    assert "running (waiting)" not in works
    assert "running (waiting)" in waits
    assert waits.endswith(REASON)


def test_where_nobody_waits_the_list_has_no_column_for_it(
    found: list[RunView], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "read_list", lambda config, ask, **_: found[:1])
    runs.list_()
    assert "waiting" not in capsys.readouterr().out


def test_a_run_is_shown_with_what_it_waits_for_and_since_when(
    found: list[RunView], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(showing, "read", lambda config, ask: (found[1], [], []))
    showing.show(NAME, RUN_ID)
    shown = capsys.readouterr().out
    assert "running (waiting)" in shown
    assert REASON in shown
    assert "waiting since" in shown


def test_as_json_the_state_is_the_contracts_and_the_wait_has_fields_of_its_own(
    found: list[RunView], monkeypatch: pytest.MonkeyPatch, capsysbinary: Any
) -> None:
    monkeypatch.setattr(runs, "read_list", lambda config, ask, **_: found)
    runs.list_(json=True)
    shown = json.loads(capsysbinary.readouterr().out)
    assert [(row["state"], row["waiting_for"], row["waiting_since"]) for row in shown] == [
        ("running", None, None),
        ("running", REASON, "2026-11-22T13:40:41+00:00"),
    ]
