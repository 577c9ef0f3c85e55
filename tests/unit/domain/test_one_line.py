"""Which line of an error a table shows."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from triggerer.domain.attempts import RunEnd
from triggerer.domain.runs import RunState
from triggerer.domain.text.one_line import one_line
from triggerer.errors import SubmitFailed
from triggerer.worker.failures import explain, storable

HERE = Path(__file__).parent
ELSEWHERE = HERE / "nowhere"
"""A folder without any frame, as for an exception that a library raises and handles."""

KILLED = "the run's process was killed by SIGKILL; its last output:"


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def chained(folder: Path) -> str:
    """An exception whose handler raised another exception."""
    try:
        try:
            raise OSError("no route")
        except OSError:
            raise raised(ValueError("no answer"), KeyError("a")) from None
    except ValueError as error:
        error.__suppress_context__ = False
        return explain(error, folder)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (None, None),
        ("", None),
        (f"{KILLED}\nhello", KILLED),
        (f"{KILLED}\n{explain(raised(ValueError('old')), HERE)}", KILLED),
        (f"task x failed: {KILLED}", f"task x failed: {KILLED}"),
        ("a.py does not define the DAG a any more", "a.py does not define the DAG a any more"),
    ],
)
def test_an_error_told_in_words_is_its_first_line(error: str | None, shown: str | None) -> None:
    assert one_line(error) == shown


@pytest.mark.parametrize("folder", [HERE, ELSEWHERE])
@pytest.mark.parametrize("lead", ["", "task x failed: ", "dags/a.py could not be loaded: "])
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (KeyError("value"), "KeyError: 'value'"),
        (ValueError("the first line\nthe second"), "ValueError: the first line"),
        (ValueError(), "ValueError"),
        (SubmitFailed("there is no a.py", hint="it"), "there is no a.py (it)"),
        (raised(ValueError("end"), KeyError("cause")), "ValueError: end"),
        (ExceptionGroup("several", [ValueError("a")]), "ExceptionGroup: several (1 sub-exception)"),
    ],
)
def test_of_a_traceback_the_exception_is_shown_with_what_is_said_before_it(
    lead: str, error: Exception, shown: str, folder: Path
) -> None:
    assert one_line(lead + explain(raised(error, error.__cause__), folder)) == lead + shown


@pytest.mark.parametrize("folder", [HERE, ELSEWHERE])
def test_of_a_chain_the_last_exception_is_shown(folder: Path) -> None:
    assert one_line(f"task x failed: {chained(folder)}") == "task x failed: ValueError: no answer"


def test_an_attempt_has_the_same_reason_as_its_run() -> None:
    error = f"task x failed: {chained(ELSEWHERE)}\n\ntask y failed: KeyError: 'b'"
    end = RunEnd(RunState.FAILED, datetime.now(UTC), error)
    assert end.in_short == "task x failed: ValueError: no answer (and 1 more)"


def test_an_exception_is_found_below_a_cut() -> None:
    frames = "".join(f'  File "a.py", line {n}, in f\n    f()\n' for n in range(1000))
    text = storable(f"Traceback (most recent call last):\n{frames}RecursionError: too deep")
    assert "see the log" in text
    assert one_line(text) == "RecursionError: too deep"


def test_of_several_tasks_that_failed_the_first_is_shown_and_how_many_more_there_are() -> None:
    failures = [
        f"task {name} failed: {explain(raised(KeyError(name)), HERE)}" for name in ("a", "b", "c")
    ]
    assert one_line("\n\n".join(failures)) == "task a failed: KeyError: 'a' (and 2 more)"
