"""`output.parquet` on object stores with conditional uploads. Each session has a new JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.storage.gcs import Gcs
from tests.services.storage.s3 import S3
from tests.worker.output.once import WRITE, WRITTEN
from tests.worker.spark.processes import start_python

pytestmark = [pytest.mark.timeout(400), pytest.mark.soak]

OPEN = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from triggerer.worker.output import Output, folders, hadoop_files

session = open_it(SparkSettings(master="local[2]", conf=CONF))
path = f"{ROOT}/once/a table"
"""
COMMIT_TOGETHER = """
# Both have begun to create the file of the commit before either ends its upload.
marks = ("m1", "m2")
two = [folders.folder_at(session, path) for _ in marks]
for folder, mark in zip(two, marks):
    rows.write.partitionBy("day", "place").parquet(folder.draft("c", mark))
barrier, upload = Barrier(2), hadoop_files._write

def upload_together(stream, text):
    barrier.wait(60)
    upload(stream, text)

hadoop_files._write = upload_together
with ThreadPoolExecutor() as pool:
    found = list(pool.map(lambda folder, mark: folder.commit("c", mark), two, marks))
print(*found, count())
os._exit(0)
"""


def test_an_output_is_written_once_and_one_of_two_commits_at_the_same_moment_succeeds(
    tmp_path: Path, object_store: S3 | Gcs
) -> None:
    code = f"CONF, ROOT = {object_store.conf()!r}, {object_store.root!r}\n{OPEN}{WRITE}{COMMIT_TOGETHER}"
    with start_python(code, tmp_path) as process:
        shown, errors = process.communicate(timeout=300)
    lines = shown.splitlines()
    assert lines[:3] == WRITTEN, errors[-4000:]
    # Both attempts name the same winner, and only its rows are there.
    assert lines[3] in ("m1 m1 50", "m2 m2 50"), errors[-4000:]
