"""`output.jdbc` finds the table's columns by name."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from triggerer.errors import OutputRefused
from triggerer.worker.output.jdbc import Connection, write_jdbc
from triggerer.worker.output.writing import Writing


class Asked(BaseException):
    """The columns were found, because the database is asked for the output's token."""


class Table(Connection):
    """The connection to a database whose only table has these columns."""

    def __init__(self, *columns: str) -> None:
        super().__init__(SimpleNamespace(), "jdbc:sqlite:x", None)  # type: ignore[arg-type]
        self._columns = list(columns)

    def columns(self, table: str) -> list[str]:
        return self._columns

    def query(self, query: str) -> Sequence[Any]:
        raise Asked


def write(frame: Sequence[str], table: Table, key: Sequence[str] = ()) -> None:
    writing = Writing("token", "0123456789abcdef_1", lambda: True)
    rows: Any = SimpleNamespace(columns=list(frame))
    write_jdbc(rows, table, "orders", writing, key=key)


@pytest.mark.parametrize("frame", [["Id", "n"], ["id", "N"], ["ID", "n"]])
def test_a_name_may_differ_in_case_if_one_column_fits(frame: list[str]) -> None:
    with pytest.raises(Asked):
        write(frame, Table("Id", "n"), key=["iD"])


@pytest.mark.parametrize("name", ["id", "ID"])
def test_of_columns_that_differ_only_in_case_the_exact_name_is_chosen(name: str) -> None:
    with pytest.raises(Asked):
        write([name], Table("id", "ID"))


def test_a_name_that_fits_several_columns_is_refused() -> None:
    said = "orders has the columns id, ID, and 'Id' may be any of them"
    with pytest.raises(OutputRefused, match=said):
        write(["Id"], Table("id", "ID"))
    with pytest.raises(OutputRefused, match="the rows for orders has the columns id, ID"):
        write(["id", "ID"], Table("id", "ID"), key=["Id"])
