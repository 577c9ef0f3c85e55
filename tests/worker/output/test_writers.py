"""In a real Spark, each writer writes its rows only once, even if a try repeats or two attempts write at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services.databases.postgres import PostgresServer
from tests.worker.output.conftest import TryAgain
from triggerer.errors import OutputRefused
from triggerer.worker.output import Output
from triggerer.worker.output.jdbc import Connection

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]


_SWEPT = ("No such file", "does not exist", "triggerer_draft")


@dataclass
class Target:
    """A function that writes one kind of output, and one that counts the rows with Spark."""

    kind: str
    write: Callable[[Output, Any], str]
    count: Callable[[], int]


@pytest.fixture(
    params=[
        "parquet",
        "s3",
        "delta",
        "iceberg",
        "jdbc",
        pytest.param("derby", marks=pytest.mark.soak),
    ]
)
def target(
    request: pytest.FixtureRequest, spark: Any, tmp_path: Path, postgres_server: PostgresServer
) -> Iterator[Target]:
    name = f"t{abs(hash(tmp_path))}"
    match request.param:
        case "parquet" | "s3":
            path = f"s3a://lake/{name}" if request.param == "s3" else str(tmp_path / "rows")
            yield Target(
                request.param,
                lambda o, df: o.parquet(df, path),
                lambda: spark.read.parquet(path).count(),
            )
        case "delta":
            yield Target(
                request.param, lambda o, df: o.delta(df, name), lambda: spark.table(name).count()
            )
            spark.sql(f"DROP TABLE {name}")
        case "iceberg":
            spark.sql(f"CREATE TABLE ice.db.{name} (id BIGINT) USING iceberg")
            yield Target(
                request.param,
                lambda o, df: o.iceberg(df, f"ice.db.{name}"),
                lambda: spark.table(f"ice.db.{name}").count(),
            )
        case _:
            postgres = f"jdbc:postgresql://127.0.0.1:{postgres_server.port}/postgres?user=postgres"
            # Derby is part of Spark.
            derby = "jdbc:derby:memory:tests;create=true"
            database = Connection(spark, derby if request.param == "derby" else postgres, None)
            database.execute(f"CREATE TABLE {name} (id BIGINT)")
            yield Target(
                request.param,
                lambda o, df: o.jdbc(df, database.url, name, key=()),
                lambda: database.query(f"SELECT COUNT(*) AS n FROM {name}")[0][0],
            )


def test_a_repeat_writes_nothing_a_second_call_does_and_so_does_a_cleared_run(
    spark: Any, target: Target, try_again: TryAgain
) -> None:
    rows = spark.range(10)
    first = try_again()
    assert target.write(first, rows) == "written"
    assert target.count() == 10
    repeat = try_again()
    assert target.write(repeat, rows) == "was_there"
    assert target.count() == 10
    # The first try made one call. So the repeat's second call has no predecessor, and writes rows.
    assert target.write(repeat, spark.range(5)) == "written"
    assert target.count() == 15
    third = try_again()
    assert [target.write(third, rows), target.write(third, spark.range(5))] == ["was_there"] * 2
    assert target.write(try_again("0" * 32), rows) == "written"
    assert target.count() == 25


def test_a_former_attempt_writes_nothing_at_its_start_and_at_the_commit(
    spark: Any, target: Target, try_again: TryAgain
) -> None:
    assert target.write(try_again("0" * 32), spark.range(1)) == "written"
    with pytest.raises(OutputRefused, match="no longer the current one"):
        target.write(try_again(current=lambda: False), spark.range(10))
    if target.kind != "delta":
        # Delta's writer asks only once, because Delta's own commit refuses a second write.
        answers = iter([True, False])
        with pytest.raises(OutputRefused, match="no longer the current one"):
            target.write(try_again(current=lambda: next(answers)), spark.range(10))
    assert target.count() == 1
    assert target.write(try_again(), spark.range(10)) == "written"
    assert target.count() == 11


def test_of_two_attempts_that_are_alive_at_once_one_writes(
    spark: Any, target: Target, try_again: TryAgain
) -> None:
    """The second attempt writes before the first attempt's commit. The first attempt still counts as current."""
    assert target.write(try_again("0" * 32), spark.range(1)) == "written"
    second: list[str] = []
    # Delta's own commit decides, so Delta's writer asks only at its beginning.
    moments = iter([target.kind == "delta", True, False])

    def ask() -> bool:
        if next(moments):
            second.append(target.write(try_again(), spark.range(10)))
        return True

    first = _write_or_be_swept(lambda: target.write(try_again(current=ask), spark.range(10)))
    assert first in ("was_there", None)
    assert second == ["written"]
    assert target.count() == 11


def _write_or_be_swept(write: Callable[[], str]) -> str | None:
    """Return the result, or None if another attempt has deleted the draft of this one."""
    try:
        return write()
    except Exception as error:
        if not any(text in str(error) for text in _SWEPT):
            raise
        return None
