"""The names and results of a writer's calls."""

from __future__ import annotations

from typing import Final

import pytest

from triggerer.errors import OutputRefused
from triggerer.worker.output import Output
from triggerer.worker.output.folders import folder_at
from triggerer.worker.output.writing import Names, Writing

FIRST: Final = "0123456789abcdef_1"
SECOND: Final = "0123457089abcdef_2"
OF_ANOTHER_TRY: Final = "0123456700000000_1"


def _writing(mark: str = FIRST, *, current: bool = True) -> Writing:
    return Writing("token", mark, lambda: current)


def test_the_calls_for_a_target_are_numbered_and_those_for_another_do_not_count() -> None:
    names = Names("token")
    assert [names.next(target) for target in ("a", "b", "a", "a", "b")] == [
        "token", "token", "token-2", "token-3", "token-2",
    ]  # fmt: skip


def test_the_outcome_says_which_call_wrote() -> None:
    assert _writing().outcome(FIRST, "a table") == "written"
    assert _writing().outcome(OF_ANOTHER_TRY, "a table") == "was_there"
    assert _writing().outcome("", "a table") == "was_there"


def test_a_second_name_for_a_target_is_refused_and_not_taken_for_a_repeat() -> None:
    with pytest.raises(OutputRefused, match="has written to a table already, under another name"):
        _writing(SECOND).outcome(FIRST, "a table")


def test_a_former_attempt_is_refused() -> None:
    _writing().require_current()
    with pytest.raises(OutputRefused, match="no longer the current one"):
        _writing(current=False).require_current()


def test_what_is_no_spark_frame_is_refused_in_a_sentence() -> None:
    output = Output("token", lambda: True)
    with pytest.raises(OutputRefused, match=r"output\.parquet takes a Spark DataFrame, not a list"):
        output.parquet([1], "/tmp/x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "said"),
    [("s3a://lake/x", "cannot write to s3a: over Spark Connect"), ("x/y", "is relative")],
)
def test_a_path_that_a_connect_client_cannot_serve_is_refused(path: str, said: str) -> None:
    with pytest.raises(OutputRefused, match=said):
        folder_at(object(), path)  # type: ignore[arg-type]
