"""`output.parquet` on a real HDFS, in the session's own JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.availability import skip_or_fail
from tests.services.process import ServiceUnavailable
from tests.services.programs.java_program import find_jars
from tests.worker.output.once import WRITE, WRITTEN
from tests.worker.spark.processes import start_python

pytestmark = [pytest.mark.timeout(400), pytest.mark.soak]

OPEN = """
from triggerer.worker.output import Output, folders, hadoop_files

session = open_it(SparkSettings(master="local[2]", conf={"spark.driver.extraClassPath": JARS}))
hadoop = session._jvm.org.apache.hadoop
conf = hadoop.conf.Configuration()
conf.set("hdfs.minidfs.basedir", str(home / "dfs"))
cluster = getattr(hadoop.hdfs, "MiniDFSCluster$Builder")(conf).numDataNodes(1).build()
cluster.waitActive()
path = cluster.getFileSystem().getUri().toString() + "/lake/a table"
"""
COMMIT_TWICE = """
folder, other = folders.folder_at(session, path), folders.folder_at(session, path)
for mark in ("m1", "m2"):
    rows.write.partitionBy("day", "place").parquet(folder.draft("c", mark))
print(folder.commit("c", "m1"), other.commit("c", "m2"), session.read.parquet(path).count())
# The servers' threads would keep the JVM alive for a while.
os._exit(0)
"""


def test_an_output_is_written_once_to_hdfs(tmp_path: Path) -> None:
    try:
        jars = find_jars("hdfs")
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))
    code = f"JARS = {str(jars / '*')!r}\n{OPEN}{WRITE}{COMMIT_TWICE}"
    with start_python(code, tmp_path) as process:
        shown, errors = process.communicate(timeout=300)
    assert shown.splitlines() == [
        *WRITTEN,
        "m1 m1 50",
    ], errors[-4000:]
