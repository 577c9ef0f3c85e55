"""The statements of `output.jdbc` for each database, and their effect on SQLite."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Any, Final

import pytest

from triggerer.errors import OutputRefused
from triggerer.worker.output.dialects import dialect_of
from triggerer.worker.output.jdbc import Connection
from triggerer.worker.output.statements import Statements

NAME: Final = "f" * 32
MARK: Final = "7fffffffabcdabcd_1"
TOKEN: Final = (
    f"INSERT INTO triggerer_output (token, target, mark) VALUES ('{NAME}', 'orders', '{MARK}')"
)
FOLDED_UP: Final = TOKEN.replace("'orders'", "'ORDERS'")


def _statements(kind: str, table: str = "orders", name: str = NAME, mark: str = MARK) -> Statements:
    return Statements(dialect_of(f"jdbc:{kind}:x"), table, name, mark)


DRAFT: Final = _statements("h2").draft
LOWER_DRAFT: Final = _statements("postgresql").draft


def test_the_token_and_the_rows_are_one_transaction_in_each_database() -> None:
    def added(quote: str, draft: str = LOWER_DRAFT, condition: str = "1 = 1") -> str:
        a, b = (f"{quote[0]}{name}{quote[-1]}" for name in ("id", "n"))
        return f"INSERT INTO orders ({a}, {b}) SELECT d.{a}, d.{b} FROM {draft} d WHERE {condition}"

    when = f"AFTER INSERT ON triggerer_output REFERENCING NEW AS fresh FOR EACH ROW WHEN (fresh.mark = '{MARK}')"
    wanted = {
        "postgresql": [
            f"WITH token AS ({TOKEN} RETURNING 1) "
            + added('"', condition="EXISTS (SELECT 1 FROM token)")
        ],
        "mysql": [f"START TRANSACTION; {TOKEN}; {added('`')}; COMMIT"],
        "mariadb": [f"START TRANSACTION; {TOKEN}; {added('`')}; COMMIT"],
        "sqlserver": [
            f"SET NOCOUNT ON; SET XACT_ABORT ON; BEGIN TRANSACTION; {TOKEN}; {added('[]')}; COMMIT"
        ],
        "oracle": [f"BEGIN {FOLDED_UP}; {added(chr(34), DRAFT)}; COMMIT; END;"],
        "h2": [f"SET AUTOCOMMIT FALSE; {FOLDED_UP}; {added(chr(34), DRAFT)}; COMMIT"],
        "derby": [f"CREATE TRIGGER {DRAFT} {when} {added(chr(34), DRAFT)}", FOLDED_UP],
        "sqlite": [
            (
                f"CREATE TRIGGER {LOWER_DRAFT} AFTER INSERT ON triggerer_output"
                f" WHEN NEW.mark = '{MARK}' BEGIN {added(chr(34))}; END"
            ),
            TOKEN,
        ],
    }
    assert {kind: _statements(kind).commit(["id", "n"], []) for kind in wanted} == wanted


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_row_replaces_the_one_with_its_key_on_conflict(kind: str) -> None:
    commit = _statements(kind).commit(["id", "day", 'a"b'], ["id", "day"])[0]
    assert 'ON CONFLICT ("id", "day") DO UPDATE SET "a""b" = EXCLUDED."a""b"' in commit
    assert 'ON CONFLICT ("id") DO NOTHING' in _statements(kind).commit(["id"], ["id"])[0]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_row_replaces_the_one_with_its_key_on_a_duplicate_key(kind: str) -> None:
    fails = "(SELECT 1 UNION ALL SELECT 2)"
    (commit,) = _statements(kind).commit(["id", "day", "a`b"], ["id", "day"])
    assert commit.endswith(
        "d WHERE 1 = 1 ON DUPLICATE KEY UPDATE `id` ="
        f" IF((orders.`id` = d.`id` AND orders.`day` = d.`day`) OR {fails}, orders.`id`, orders.`id`),"
        " `a``b` = d.`a``b`; COMMIT"
    )
    (commit,) = _statements(kind).commit(["id"], ["id"])
    assert commit.endswith(
        f"`id` = IF((orders.`id` = d.`id`) OR {fails}, orders.`id`, orders.`id`); COMMIT"
    )


@pytest.mark.parametrize("kind", ["oracle", "h2", "derby"])
def test_a_row_replaces_the_one_with_its_key_by_a_merge(kind: str) -> None:
    commit = _statements(kind).commit(["ID", "DAY", "N"], ["ID", "DAY"])[0]
    assert (
        f'MERGE INTO orders t USING {DRAFT} d ON (t."ID" = d."ID" AND t."DAY" = d."DAY")'
        ' WHEN MATCHED THEN UPDATE SET "N" = d."N"'
        ' WHEN NOT MATCHED THEN INSERT ("ID", "DAY", "N") VALUES (d."ID", d."DAY", d."N")'
    ) in commit
    assert "WHEN MATCHED" not in _statements(kind).commit(["ID"], ["ID"])[0]


def test_sql_server_locks_the_range_of_a_merge() -> None:
    (commit,) = _statements("sqlserver").commit(["id", "a]b"], ["id"])
    assert "MERGE INTO orders WITH (HOLDLOCK) AS t USING" in commit
    assert "UPDATE SET [a]]b] = d.[a]]b] WHEN NOT MATCHED" in commit
    assert commit.endswith("; COMMIT")


def test_the_draft_has_the_types_of_the_target_and_no_rows() -> None:
    wanted = {
        "postgresql": f'CREATE UNLOGGED TABLE {LOWER_DRAFT} AS SELECT "id" FROM orders WHERE 1 = 0',
        "mysql": f"CREATE TABLE {LOWER_DRAFT} AS SELECT `id` FROM orders WHERE 1 = 0",
        "sqlserver": f"SELECT [id] INTO {LOWER_DRAFT} FROM orders WHERE 1 = 0"
        " UNION ALL SELECT [id] FROM orders WHERE 1 = 0",
        "oracle": f'CREATE TABLE {DRAFT} AS SELECT "id" FROM orders WHERE 1 = 0',
        "h2": f'CREATE TABLE {DRAFT} AS SELECT "id" FROM orders WITH NO DATA',
        "derby": f'CREATE TABLE {DRAFT} AS SELECT "id" FROM orders WITH NO DATA',
    }
    assert {kind: _statements(kind).create_draft(["id"]) for kind in wanted} == wanted


def test_drafts_are_looked_for_in_the_targets_schema() -> None:
    for kind, said in (
        ("postgresql", "TABLE_SCHEMA = current_schema() AND"),
        ("mysql", "TABLE_SCHEMA = DATABASE() AND"),
        ("sqlserver", "TABLE_SCHEMA = SCHEMA_NAME() AND"),
        ("oracle", "owner = SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA') AND"),
        ("h2", "TABLE_SCHEMA = SCHEMA() AND"),
        ("derby", "s.schemaname = CURRENT SCHEMA AND"),
    ):
        assert said in _statements(kind).drafts()
    assert "TABLE_SCHEMA = 'shop' AND" in _statements("postgresql", "Shop.orders").drafts()
    assert "TABLE_SCHEMA = 'Shop' AND" in _statements("sqlserver", "[Shop].orders").drafts()
    assert "owner = 'SHOP' AND" in _statements("oracle", "shop.orders").drafts()


def test_a_trigger_is_dropped_before_its_table_and_other_runs_keep_theirs() -> None:
    later = _statements("derby", mark="7ffffffe00000000_1")
    forgotten = f"triggerer_draft_{'0' * 16}_00000001abcdabcd_1"
    found = [
        ("TABLE  ", DRAFT.upper()), ("TRIGGER", DRAFT.upper()), ("TABLE  ", later.draft.upper()),
        ("TABLE  ", _statements("derby", name="a" * 32).draft), ("TABLE  ", forgotten),
        ("TABLE  ", "triggerer_draft_of_somebody"),
    ]  # fmt: skip
    own = [f"DROP TABLE {forgotten}", f"DROP TABLE {later.draft.upper()}"]
    former = [f"DROP TRIGGER {DRAFT.upper()}", f"DROP TABLE {DRAFT.upper()}"]
    assert later.drop(found, is_written=False) == own
    dropped = later.drop(found, is_written=True)
    assert dropped[0] == former[0]
    assert sorted(dropped) == sorted(own + former)


@pytest.mark.parametrize(
    ("kind", "table"), [("postgresql", '"My Schema"."my.table"'), ("mysql", "`a b`.t"), ("h2", "t")]
)
def test_the_draft_lies_beside_its_target_and_every_database_takes_its_name_whole(
    kind: str, table: str
) -> None:
    draft = _statements(kind, table, f"{NAME}-12", "0123456789abcdef_123").draft
    schema, _, name = draft.rpartition(".")
    assert table.startswith(schema)
    assert len(name) <= 63


def test_names_of_one_table_are_one_target() -> None:
    for kind, first, second in (
        ("postgresql", "Orders", '"orders"'),
        ("oracle", "shop.orders", 'shop."ORDERS"'),
        ("sqlserver", "orders", "[orders]"),
    ):
        assert _statements(kind, first).draft == _statements(kind, second).draft
    assert _statements("mysql", "Orders").draft != _statements("mysql", "orders").draft


@pytest.mark.parametrize("table", ["a.b.c", "a b", "", "t; DROP TABLE t", "(SELECT 1) x", "`t`"])
def test_what_is_no_name_of_a_table_is_refused(table: str) -> None:
    with pytest.raises(OutputRefused, match="is no name of a table of PostgreSQL"):
        _statements("postgresql", table).draft  # noqa: B018


def test_sqlite_has_no_schemas() -> None:
    with pytest.raises(OutputRefused, match="is no name of a table of SQLite"):
        _statements("sqlite", "main.orders").draft  # noqa: B018


def test_a_database_without_a_dialect_is_refused_and_its_password_is_not_shown() -> None:
    with pytest.raises(OutputRefused, match=r"SQLite, and knows no statement for jdbc:db2") as said:
        Connection(object(), "jdbc:db2://h/d:user=me;password=secret;", None)  # type: ignore[arg-type]
    assert "secret" not in str(said.value)


class TestSqlite:
    """The statements as `output.jdbc` executes them: each on a connection that commits at once."""

    @pytest.fixture
    def database(self) -> Any:
        database = sqlite3.connect(":memory:", isolation_level=None)
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, n INTEGER, other TEXT)")
        database.execute("INSERT INTO orders VALUES (1, 10, 'kept')")
        yield database
        database.close()

    def _write(self, database: sqlite3.Connection, output: Statements, key: list[str]) -> None:
        database.execute(output.create_draft(["id", "n"]))
        database.execute(f"INSERT INTO {output.draft} VALUES (1, 11), (2, 12)")
        for statement in output.commit(["id", "n"], key):
            database.execute(statement)

    def test_rows_are_replaced_by_key_once(self, database: sqlite3.Connection) -> None:
        output = partial(Statements, dialect_of("jdbc:sqlite:x"), "orders", NAME)
        database.execute(output(MARK).create_tokens())
        assert database.execute(output(MARK).select_mark()).fetchall() == []
        self._write(database, output(MARK), ["id"])
        with pytest.raises(sqlite3.IntegrityError):
            self._write(database, output("7fffffffabcdabcd_2"), ["id"])
        assert database.execute(output(MARK).select_mark()).fetchall() == [(MARK,)]
        rows = database.execute("SELECT * FROM orders ORDER BY id").fetchall()
        assert rows == [(1, 11, "kept"), (2, 12, None)]
        drafts = database.execute(output(MARK).drafts()).fetchall()
        assert len(drafts) == 4
        for drop in output(MARK).drop(drafts, is_written=True):
            database.execute(drop)
        assert database.execute(output(MARK).drafts()).fetchall() == []

    def test_rows_that_do_not_fit_leave_no_token(self, database: sqlite3.Connection) -> None:
        output = Statements(dialect_of("jdbc:sqlite:x"), "orders", NAME, MARK)
        database.execute(output.create_tokens())
        with pytest.raises(sqlite3.IntegrityError):
            self._write(database, output, [])
        assert database.execute(output.select_mark()).fetchall() == []
        assert database.execute("SELECT count(*) FROM orders").fetchall() == [(1,)]

    def test_keys_that_several_rows_have_are_counted(self, database: sqlite3.Connection) -> None:
        output = Statements(dialect_of("jdbc:sqlite:x"), "orders", NAME, MARK)
        database.execute(output.create_draft(["id", "n"]))
        rows = "(1, 1), (1, 2), (2, 3), (NULL, 4), (NULL, 5)"
        database.execute(f"INSERT INTO {output.draft} VALUES {rows}")
        assert database.execute(output.count_repeated_keys(["id"])).fetchall() == [(1,)]
        assert database.execute(output.count_repeated_keys(["id", "n"])).fetchall() == [(0,)]
