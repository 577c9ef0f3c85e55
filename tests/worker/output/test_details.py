"""The writers' arguments, their refusals, and the file systems of Hadoop, in a real Spark."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.services.databases.postgres import PostgresServer
from tests.worker.output.conftest import TryAgain
from triggerer.errors import OutputRefused
from triggerer.worker.output import drafts, folders, iceberg
from triggerer.worker.output.hadoop_files import HadoopFiles
from triggerer.worker.output.jdbc import Connection
from triggerer.worker.output.marks import new_mark, new_try
from triggerer.worker.output.statements import Statements

pytestmark = [pytest.mark.timeout(300), pytest.mark.soak]


@pytest.fixture
def jdbc(postgres_server: PostgresServer) -> str:
    return f"jdbc:postgresql://127.0.0.1:{postgres_server.port}/postgres?user=postgres"


def test_partitions_and_files_from_before_are_read_as_one_table(
    spark: Any, tmp_path: Path, try_again: TryAgain
) -> None:
    path = str(tmp_path / "a table")
    rows = spark.range(10).selectExpr("id", "id % 2 AS day", "'é:/=' AS place")
    rows.write.partitionBy("day", "place").parquet(path)
    by = ["day", "place"]
    assert try_again().parquet(rows, path, partition_by=by) == "written"
    assert try_again().parquet(rows, path, partition_by=by) == "was_there"
    found = spark.read.parquet(path)
    assert found.columns == ["id", "day", "place"]
    assert [
        (r.day, r.place, r["count(1)"]) for r in found.groupBy(by).agg({"*": "count"}).collect()
    ]
    assert found.groupBy("day", "place").count().orderBy("day").collect() == [
        (0, "é:/=", 10), (1, "é:/=", 10),
    ]  # fmt: skip


def test_a_frame_that_is_open_sees_the_rows_after_the_write(
    spark: Any, tmp_path: Path, try_again: TryAgain
) -> None:
    path = str(tmp_path / "t")
    try_again().parquet(spark.range(3), path)
    cached = spark.read.parquet(path).cache()
    assert cached.count() == 3
    try_again("0" * 32).parquet(spark.range(3), path)
    assert cached.count() == 6
    cached.unpersist()


def test_a_second_name_for_a_folder_counts_as_the_folder(
    spark: Any, tmp_path: Path, try_again: TryAgain
) -> None:
    output, rows = try_again(), spark.range(3)
    assert output.parquet(rows, f"{tmp_path}/t") == "written"
    assert output.parquet(rows, f"file:{tmp_path}/t/") == "written"
    assert spark.read.parquet(f"{tmp_path}/t").count() == 6


def test_a_failed_write_leaves_no_draft(spark: Any, tmp_path: Path, try_again: TryAgain) -> None:
    path = tmp_path / "t"
    with pytest.raises(Exception, match="no luck"):
        try_again().parquet(spark.range(3).selectExpr("raise_error('no luck') AS x"), str(path))
    assert list((path / "_triggerer" / "drafts").iterdir()) == []


class TestHadoopsFiles:
    """Outputs on a local disk through Hadoop's file systems, which are also the way to HDFS and object stores."""

    @pytest.fixture(autouse=True)
    def _by_way_of_hadoop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(HadoopFiles, "local_root", None)

    def test_an_output_is_written_once(
        self, spark: Any, tmp_path: Path, try_again: TryAgain
    ) -> None:
        path = str(tmp_path / "a table")
        rows = spark.range(10).selectExpr("id", "id % 2 AS day", "'é:/=' AS place")
        by = ["day", "place"]
        assert try_again().parquet(rows, path, partition_by=by) == "written"
        assert try_again().parquet(rows, path, partition_by=by) == "was_there"
        assert spark.read.parquet(path).groupBy("day").count().orderBy("day").collect() == [
            (0, 5), (1, 5),
        ]  # fmt: skip

    def test_a_commit_is_finished_and_another_draft_is_swept(
        self, spark: Any, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "t")
        folder = folders.folder_at(spark, path)
        files = HadoopFiles(spark, path)
        spark.range(3).write.parquet(folder.draft("a", "m1"))
        spark.range(4).write.parquet(folder.draft("a", "m2"))
        assert files.visible_below(folder.draft("a", "m1"))
        assert folder.commit("a", "m1") == "m1"
        assert folder.commit("a", "m2") == "m1"
        # Simulate that the process died right after its commit, before it deleted the draft of another attempt.
        (tmp_path / "t" / "_triggerer" / "drafts").mkdir(exist_ok=True)
        spark.range(5).write.parquet(folder.draft("a", "m3"))
        assert folder.prepare("a") == "m1"
        assert files.names(f"{path}/_triggerer/drafts") == []
        assert spark.read.parquet(path).count() == 3

    def test_a_file_is_created_by_one_of_two(self, spark: Any, tmp_path: Path) -> None:
        files = HadoopFiles(spark, str(tmp_path))
        target, way = f"{tmp_path}/written/x.json", f"{tmp_path}/draft/_commit.json"
        files.create(target, "é", by_way_of=way)
        assert files.read(target) == "é"
        files.create(target, "b", by_way_of=way)
        assert files.read(target) == "é"
        assert files.read(f"{tmp_path}/nothing") is None


def test_delta_overwrites_once_and_refuses_another_mode_and_another_format(
    spark: Any, tmp_path: Path, try_again: TryAgain
) -> None:
    path = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(path)
    assert try_again().delta(spark.range(5), path, mode="overwrite") == "written"
    spark.range(2).write.format("delta").mode("append").save(path)
    assert try_again().delta(spark.range(5), path, mode="overwrite") == "was_there"
    assert spark.read.format("delta").load(path).count() == 7
    with pytest.raises(OutputRefused, match="has no mode 'ignore'"):
        try_again().delta(spark.range(5), path, mode="ignore")
    spark.sql("CREATE TABLE plain (id BIGINT) USING parquet")
    with pytest.raises(Exception, match=r"(?i)delta"):
        try_again().delta(spark.range(5), "plain")
    spark.sql("DROP TABLE plain")


def test_a_delta_table_that_does_not_exist_is_created_once(
    spark: Any, tmp_path: Path, try_again: TryAgain
) -> None:
    for target in (str(tmp_path / "new"), "created_by_name"):
        assert try_again().delta(spark.range(3), target) == "written"
        assert try_again().delta(spark.range(3), target) == "was_there"
    assert spark.read.format("delta").load(str(tmp_path / "new")).count() == 3
    assert spark.table("created_by_name").count() == 3
    spark.sql("DROP TABLE created_by_name")


def test_a_delta_table_counts_as_one_by_name_and_by_path(
    spark: Any, tmp_path: Path, try_again: TryAgain
) -> None:
    spark.sql(f"CREATE TABLE named (id BIGINT) USING delta LOCATION '{tmp_path}/t'")
    output = try_again()
    assert output.delta(spark.range(3), "named") == "written"
    assert output.delta(spark.range(3), f"{tmp_path}/t") == "written"
    assert output.delta(spark.range(3), "default.named") == "written"
    assert spark.table("named").count() == 9
    spark.sql("DROP TABLE named")


def test_iceberg_without_its_extensions_looks_first(
    spark: Any,
    try_again: TryAgain,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spark.sql("CREATE TABLE ice.db.plain (id BIGINT) USING iceberg")
    monkeypatch.setattr(iceberg.IcebergTable, "create_branch", lambda self, branch: False)
    with caplog.at_level(logging.INFO, "triggerer.run"):
        assert try_again().iceberg(spark.range(3), "ice.db.plain") == "written"
    assert "without a branch" in caplog.text
    assert try_again().iceberg(spark.range(3), "ice.db.plain") == "was_there"
    monkeypatch.undo()
    assert try_again().iceberg(spark.range(3), "ice.db.plain") == "was_there"
    assert spark.table("ice.db.plain").count() == 3
    output = try_again("1" * 32)
    output.iceberg(spark.range(1), "ice.db.plain")
    with pytest.raises(OutputRefused, match="by another name"):
        output.iceberg(spark.range(1), "`ice`.db.plain")


def test_iceberg_sweeps_the_branches_of_dead_tries_and_keeps_those_of_other_runs(
    spark: Any, try_again: TryAgain
) -> None:
    spark.sql("CREATE TABLE ice.db.swept (id BIGINT) USING iceberg")
    table = iceberg.IcebergTable(spark, "ice.db.swept")
    mark = new_mark(new_try(), 1)
    for name in ("f" * 32 + "__00000001_1", "a" * 32 + f"__{mark}", "a" * 32 + "__00000001abc_1"):
        table.create_branch(f"triggerer_draft_{name}")
    assert try_again().iceberg(spark.range(3), "ice.db.swept") == "written"
    assert list(table.drafts()) == [f"triggerer_draft_{'a' * 32}__{mark}"]


def test_jdbc_replaces_rows_by_key_and_takes_any_type_that_a_text_can_be(
    spark: Any, jdbc: str, try_again: TryAgain
) -> None:
    database = Connection(spark, jdbc, None)
    database.execute(
        'CREATE TABLE orders ("Id" BIGINT PRIMARY KEY, doc JSONB, at TIMESTAMPTZ DEFAULT now())'
    )
    rows = spark.range(4).selectExpr("id", """'{"a": 1}' AS doc""")
    assert try_again().jdbc(rows, jdbc, "orders", key="id") == "written"
    newer = spark.range(2, 6).selectExpr("id", """'{"a": 2}' AS doc""")
    assert try_again("0" * 32).jdbc(newer, jdbc, "public.orders", key=["id"]) == "written"
    query = "SELECT doc ->> 'a' AS a, count(*) FROM orders GROUP BY 1 ORDER BY 1"
    assert database.query(query) == [("1", 2), ("2", 4)]
    drafts = "SELECT relname FROM pg_class WHERE relname LIKE 'triggerer_draft%'"
    assert database.query(drafts) == []
    output = try_again("1" * 32)
    output.jdbc(rows, jdbc, "orders", key="id")
    with pytest.raises(OutputRefused, match="by another name"):
        output.jdbc(rows, jdbc, "public.orders", key="id")


def test_jdbc_refuses_in_a_sentence_what_does_not_fit_the_table(
    spark: Any, jdbc: str, try_again: TryAgain
) -> None:
    database = Connection(spark, jdbc, {"fetchsize": "100"})
    database.execute("CREATE TABLE fits (id BIGINT PRIMARY KEY, n INT)")
    rows = spark.range(2).selectExpr("id", "int(id) AS n")
    for frame, key, said in (
        (rows.withColumnRenamed("n", "m"), "id", "fits has no column 'm'"),
        (rows, "m", "the rows for fits has no column 'm'"),
        (rows, "n", r"fits has no unique constraint on \(n\)"),
        (rows.unionAll(rows), "id", r"two of the rows for fits have the same \(id\)"),
    ):
        with pytest.raises(OutputRefused, match=said):
            try_again().jdbc(frame, jdbc, "fits", key=key)
    assert database.query("SELECT count(*) FROM fits") == [(0,)]


def test_jdbc_sweeps_the_drafts_of_dead_tries_and_keeps_those_of_other_runs(
    spark: Any, jdbc: str, try_again: TryAgain
) -> None:
    database = Connection(spark, jdbc, None)
    database.execute("CREATE TABLE swept (id BIGINT PRIMARY KEY)")
    mark = new_mark(new_try(), 1)
    of = partial(Statements, database.dialect, "swept")
    dead = of("f" * 32, "00000001abcdabcd_1").draft
    other = of("a" * 32, mark).draft
    forgotten = of("a" * 32, "00000001abcdabcd_1").draft
    for draft in (dead, other, forgotten):
        database.execute(f"CREATE TABLE {draft} (id BIGINT)")
    assert try_again().jdbc(spark.range(3), jdbc, "swept", key="id") == "written"
    query = "SELECT relname FROM pg_class WHERE relname LIKE 'triggerer_draft%'"
    assert database.query(query) == [(other,)]
    database.execute(f"DROP TABLE {other}")


def test_every_hidden_folder_is_hidden_from_spark() -> None:
    assert drafts.HIDDEN.startswith("_")
