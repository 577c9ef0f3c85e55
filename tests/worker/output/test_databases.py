"""`output.jdbc` on other databases than PostgreSQL, in a real Spark with their own drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.availability import service, skip_or_fail
from tests.services.databases.mariadb import open_mariadb
from tests.services.process import ServiceUnavailable
from tests.services.programs.java_program import find_jars
from tests.worker.output.conftest import TryAgain
from triggerer.errors import OutputRefused
from triggerer.worker.output.jdbc import Connection
from triggerer.worker.output.marks import new_mark, new_try
from triggerer.worker.output.statements import Statements
from triggerer.worker.spark import SparkSettings, close_session, open_session

pytestmark = [pytest.mark.timeout(600), pytest.mark.soak]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        jars = find_jars("jdbc_drivers")
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))
    conf = {
        "spark.jars": ",".join(map(str, jars.glob("*.jar"))),
        "spark.sql.shuffle.partitions": "2",
    }
    home = tmp_path_factory.mktemp("databases")
    settings = SparkSettings(master="local[2]", conf=conf)
    session = open_session(settings, home=home, app_name="tests")
    yield session
    close_session(session)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[int]:
    with service(open_mariadb()) as server:
        yield server.port


@pytest.fixture(params=["h2", "derby", "sqlite", "mariadb", "mysql"])
def database(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Connection:
    kind: str = request.param
    where = {
        "h2": lambda: f"{tmp_path}/h2",
        "derby": lambda: f"{tmp_path}/derby;create=true",
        "sqlite": lambda: f"{tmp_path}/sqlite",
    }
    if kind in where:
        return Connection(spark, f"jdbc:{kind}:{where[kind]()}", None)
    # MariaDB speaks MySQL's protocol, so its server serves both kinds.
    port = request.getfixturevalue("mariadb")
    server = Connection(spark, f"jdbc:{kind}://127.0.0.1:{port}/test?user=root", None)
    for (table,) in server.query(
        "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = 'test'"
    ):
        server.execute(f"DROP TABLE {table}")
    return server


def _rows(database: Connection, columns: str, table: str = "orders") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in database.query(f"SELECT {columns} FROM {table}"))


def _drafts(database: Connection) -> list[str]:
    statements = Statements(database.dialect, "orders", "", "")
    return [name.lower() for _, name in database.query(statements.drafts())]


@pytest.fixture
def orders(database: Connection) -> Connection:
    database.execute(
        "CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, n INTEGER, x VARCHAR(9))"
    )
    database.execute("INSERT INTO orders VALUES (1, 10, 'kept')")
    return database


def test_rows_are_replaced_by_key_once(spark: Any, orders: Connection, try_again: TryAgain) -> None:
    rows = spark.range(1, 4, 1, 2).selectExpr("CAST(id AS INT) AS Id", "CAST(id * 2 AS INT) AS n")
    write: Callable[..., str] = lambda output: output.jdbc(rows, orders.url, "orders", key="id")  # noqa: E731
    assert write(try_again()) == "written"
    assert _rows(orders, "id, n, x") == [(1, 2, "kept"), (2, 4, None), (3, 6, None)]
    orders.execute("UPDATE orders SET n = 0 WHERE id = 1")
    assert write(try_again()) == "was_there"
    assert (1, 0, "kept") in _rows(orders, "id, n, x")
    assert write(try_again("0" * 32)) == "written"
    assert (1, 2, "kept") in _rows(orders, "id, n, x")
    assert _drafts(orders) == []


@pytest.mark.parametrize("stored_id", [2, None])
def test_a_row_that_collides_with_another_row_than_that_of_its_key_is_refused(
    spark: Any, database: Connection, try_again: TryAgain, stored_id: int | None
) -> None:
    number = "NULL" if stored_id is None else str(stored_id)
    database.execute(
        "CREATE TABLE orders (code VARCHAR(9) NOT NULL PRIMARY KEY, id INTEGER, n INTEGER)"
    )
    database.execute("CREATE UNIQUE INDEX one_id ON orders (id)")
    database.execute(f"INSERT INTO orders VALUES ('a', {number}, 10)")
    rows = spark.sql(f"SELECT 'a' AS code, CAST({number} + 1 AS INT) AS id, 11 AS n")
    with pytest.raises(Exception, match=r"collides|[Uu]nique|UNIQUE|duplicate"):
        try_again().jdbc(rows, database.url, "orders", key="id")
    assert [tuple(row) for row in database.query("SELECT code, id, n FROM orders")] == [
        ("a", stored_id, 10)
    ]
    assert _drafts(database) == []
    rows = spark.sql("SELECT 'b' AS code, 3 AS id, 12 AS n")
    assert try_again().jdbc(rows, database.url, "orders", key="id") == "written"


def test_rows_without_a_key_are_added_once(
    spark: Any, database: Connection, try_again: TryAgain
) -> None:
    database.execute("CREATE TABLE orders (id INTEGER, moment TIMESTAMP, text VARCHAR(20))")
    rows = spark.range(2).selectExpr(
        "CAST(id AS INT) AS id", "TIMESTAMP '2026-01-02 03:04:05' AS moment", "'it''s {x}' AS text"
    )
    output = try_again()
    assert output.jdbc(rows, database.url, "orders", key=()) == "written"
    assert output.jdbc(rows, database.url, "orders", key=()) == "written"
    assert try_again().jdbc(rows, database.url, "orders", key=()) == "was_there"
    assert _rows(database, "id, text") == [(0, "it's {x}")] * 2 + [(1, "it's {x}")] * 2


def test_of_two_attempts_that_are_alive_at_once_one_writes(
    spark: Any, orders: Connection, try_again: TryAgain
) -> None:
    rows = spark.range(2, 4).selectExpr("CAST(id AS INT) AS id", "1 AS n")
    second: list[str] = []
    moments = iter([True, False])

    def ask() -> bool:
        # The first attempt's second call comes just before its commit. At this moment another attempt writes.
        if not next(moments):
            second.append(try_again().jdbc(rows, orders.url, "orders", key=()))
        return True

    assert try_again(current=ask).jdbc(rows, orders.url, "orders", key=()) == "was_there"
    assert second == ["written"]
    assert _rows(orders, "id") == [(1,), (2,), (3,)]


def test_a_former_attempt_is_refused_at_the_commit(
    spark: Any, orders: Connection, try_again: TryAgain
) -> None:
    rows = spark.range(2, 4).selectExpr("CAST(id AS INT) AS id", "1 AS n")
    answers = iter([True, False])
    with pytest.raises(OutputRefused, match="no longer the current one"):
        try_again(current=lambda: next(answers)).jdbc(rows, orders.url, "orders", key="id")
    assert _rows(orders, "id") == [(1,)]
    assert _drafts(orders) == []
    assert try_again().jdbc(rows, orders.url, "orders", key="id") == "written"


def test_rows_that_do_not_fit_change_nothing_and_the_next_try_may_write(
    spark: Any, orders: Connection, try_again: TryAgain
) -> None:
    rows = spark.range(1, 4).selectExpr("CAST(id AS INT) AS id", "1 AS n")
    with pytest.raises(
        OutputRefused, match=r"two of the rows for orders have the same \((id|ID)\)"
    ):
        try_again().jdbc(rows.unionAll(rows), orders.url, "orders", key="id")
    # The table has a row with the id 1. Without a key the writer adds another such row, and the table refuses it.
    with pytest.raises(Exception, match=r"(?i)unique|duplicate|primary|constraint"):
        try_again().jdbc(rows, orders.url, "orders", key=())
    assert _rows(orders, "id") == [(1,)]
    assert _drafts(orders) == []
    assert try_again().jdbc(rows, orders.url, "orders", key="id") == "written"


def test_the_drafts_of_dead_tries_are_swept_and_other_runs_keep_theirs(
    spark: Any, orders: Connection, try_again: TryAgain
) -> None:
    def draft(name: str, mark: str) -> str:
        statements = Statements(orders.dialect, "orders", name, mark)
        if not _drafts(orders):
            orders.execute(statements.create_tokens())
        orders.execute(
            statements.create_draft(["ID" if orders.dialect.fold is str.upper else "id"])
        )
        return statements.draft

    other = draft("a" * 32, new_mark(new_try(), 1))
    draft("f" * 32, new_mark(new_try(), 1))
    draft("a" * 32, "00000001abcdabcd_1")
    rows = spark.range(5, 6).selectExpr("CAST(id AS INT) AS id", "1 AS n")
    assert try_again().jdbc(rows, orders.url, "orders", key="id") == "written"
    assert _drafts(orders) == [other]
