"""The names and results of a writer's calls, and the statements for PostgreSQL."""

from __future__ import annotations

from typing import Final

import pytest

from triggerer.errors import OutputRefused
from triggerer.worker.output import Output
from triggerer.worker.output.jdbc import Connection
from triggerer.worker.output.places import open_place
from triggerer.worker.output.postgresql import Output as Statements
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


def test_a_table_that_a_call_creates_goes_on_with_the_number() -> None:
    names = Names("token")
    assert names.next("new") == "token"
    names.identify("new", "id")
    assert names.next("id") == "token-2"


def test_the_outcome_says_which_call_wrote() -> None:
    assert _writing().outcome(FIRST, "a table") == "written"
    assert _writing().outcome(OF_ANOTHER_TRY, "a table") == "was_there"
    assert _writing().outcome("", "a table") == "was_there"


def test_a_second_name_for_a_target_is_refused_and_not_taken_for_a_repeat() -> None:
    with pytest.raises(OutputRefused, match="has written to a table already, by another name"):
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
        open_place(object(), path)  # type: ignore[arg-type]


def test_a_database_without_a_statement_is_refused_and_its_password_is_not_shown() -> None:
    with pytest.raises(OutputRefused, match="no statement for jdbc:mysql") as refused:
        Connection(object(), "jdbc:mysql://h/d?user=me&password=secret", None)  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


def test_a_row_replaces_the_one_with_its_key() -> None:
    statement = Statements("shop.orders", "token", "m1").merge(["id", "day", 'a"b'], ["id"])
    assert statement.endswith(
        'ON CONFLICT ("id") DO UPDATE SET "day" = EXCLUDED."day", "a""b" = EXCLUDED."a""b"'
    )
    assert 'INSERT INTO shop.orders ("id", "day", "a""b")' in statement
    assert "INSERT INTO shop.triggerer_output" in statement


def test_rows_with_nothing_but_a_key_stay_as_they_are_and_those_without_one_are_added() -> None:
    statements = Statements("t", "token", "m1")
    assert statements.merge(["id"], ["id"]).endswith('ON CONFLICT ("id") DO NOTHING')
    assert statements.merge(["id"], []).endswith("WHERE EXISTS (SELECT 1 FROM token)")


@pytest.mark.parametrize("table", ['"My Schema"."my.table"', "t", "a.t"])
def test_the_draft_lies_beside_its_target_and_has_a_name_that_postgresql_takes_whole(
    table: str,
) -> None:
    draft = Statements(table, "f" * 32 + "-12", "0123456789abcdef_123").draft
    schema, _, name = draft.rpartition(".")
    assert table.startswith(schema)
    assert len(name) <= 63


@pytest.mark.parametrize("table", ["a.b.c", "a b", "", "t; DROP TABLE t", "(SELECT 1) x"])
def test_what_is_no_name_of_a_table_is_refused(table: str) -> None:
    with pytest.raises(OutputRefused, match="is no name of a table"):
        Statements(table, "token", "m1").prepare()
