"""`output.parquet` on object stores that create an object on a condition, in a session of a JVM of its own."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.services.gcs import Gcs
from tests.services.s3 import S3
from tests.worker.spark.processes import start_python

pytestmark = [pytest.mark.timeout(400), pytest.mark.soak]

CLIENT = """
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier
    from triggerer.worker.output import Output, hadoop_files, places

    session = open_it(SparkSettings(master="local[2]", conf=CONF))
    path = f"{ROOT}/once/a table"
    rows = session.range(10).selectExpr("id", "id % 2 AS day", "'a:/=' AS place")

    def write(token):
        return Output(token, lambda: True).parquet(rows, path, partition_by=["day", "place"])

    def count():
        return len(session.read.parquet(path).collect())

    print(write("f" * 32), write("f" * 32), write("0" * 32), count())

    class Killed(BaseException):
        pass

    def die(self, source, target):
        raise Killed

    move, hadoop_files.HadoopFiles.move = hadoop_files.HadoopFiles.move, die
    try:
        write("a" * 32)
    except Killed:
        print("killed", count())
    hadoop_files.HadoopFiles.move = move
    print(write("b" * 32), write("a" * 32), count())

    # Both have begun to create the file of the commit before either ends its upload.
    marks = ("m1", "m2")
    two = [places.open_place(session, path) for _ in marks]
    for place, mark in zip(two, marks):
        rows.write.partitionBy("day", "place").parquet(place.draft("c", mark))
    barrier, upload = Barrier(2), hadoop_files._write

    def upload_together(stream, text):
        barrier.wait(60)
        upload(stream, text)

    hadoop_files._write = upload_together
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda place, mark: place.commit("c", mark), two, marks))
    print(*found, count())
    os._exit(0)
"""


def test_an_output_is_written_once_and_one_of_two_commits_at_the_same_moment_succeeds(
    tmp_path: Path, object_store: S3 | Gcs
) -> None:
    code = f"CONF, ROOT = {object_store.conf()!r}, {object_store.root!r}\n{dedent(CLIENT)}"
    with start_python(code, tmp_path) as process:
        shown, errors = process.communicate(timeout=300)
    lines = shown.splitlines()
    assert lines[:3] == ["written was_there written 20", "killed 20", "written was_there 40"], (
        errors[-4000:]
    )
    # Both attempts name the same winner, and its rows alone are there.
    assert lines[3] in ("m1 m1 50", "m2 m2 50"), errors[-4000:]
