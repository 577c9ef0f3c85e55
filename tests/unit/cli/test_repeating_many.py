"""`runs retry` of many runs asks a person at a terminal first, but never a script."""

from __future__ import annotations

import pytest
import typer

from triggerer.cli.runs import repeat_many as repeating_many
from triggerer.cli.runs.repeat_many import ManyRuns, repeat_many
from triggerer.domain.runs import RunState
from triggerer.operations.many_runs import Chosen
from triggerer.store.runs.ended import EndedRuns

CHOSEN = Chosen(EndedRuns([RunState.FAILED]), runs=3, dags=1, up_to=9)


@pytest.mark.parametrize(
    ("is_terminal", "options", "answer", "queues"),
    [
        (True, {}, True, True),
        (True, {}, False, False),
        (True, {"yes": True}, None, True),
        (True, {"dry_run": True}, None, True),
        (False, {}, None, True),
    ],
    ids=["yes", "no", "--yes", "--dry-run", "script"],
)
def test_only_a_person_at_a_terminal_is_asked(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    options: dict[str, bool],
    answer: bool | None,
    queues: bool,
) -> None:
    asked: list[str] = []
    worked: list[object] = []

    def confirm(question: str, *, err: bool) -> bool:
        assert err
        asked.append(question)
        return bool(answer)

    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr("sys.stdin.isatty", lambda: is_terminal)
    monkeypatch.setattr(repeating_many, "read", lambda config, ask: CHOSEN)
    monkeypatch.setattr(repeating_many, "with_database", lambda config, work: worked.append(work))
    flags = {"dry_run": False, "yes": False, "json": False} | options
    many = ManyRuns(dag=None, state="failed", from_=None, to=None, **flags)
    if queues:
        repeat_many(None, many, None, states=["failed"])
    else:
        with pytest.raises(typer.Exit) as ended:
            repeat_many(None, many, None, states=["failed"])
        assert ended.value.exit_code == 1
    assert len(worked) == queues
    assert asked == ([] if answer is None else ["Queue 3 runs of 1 DAG again?"])
