"""Delta, Iceberg and Kafka's source work on the PySpark line that is locked."""

from pathlib import Path

import pytest

from tests.services.clusters.spark_jars import SparkJars
from tests.worker.spark.processes import start_python

pytestmark = [pytest.mark.timeout(300), pytest.mark.soak]


def test_delta_and_iceberg_tables_are_written_and_kafkas_source_is_known(
    home: Path, spark_jars: SparkJars, tmp_path: Path
) -> None:
    conf = spark_jars.conf(("kafka", "delta", "iceberg"), tmp_path / "ice")
    code = (
        f"session = open_it(SparkSettings(master='local[1]', conf={conf!r}))\n"
        "rows = session.range(3)\n"
        f"rows.write.format('delta').save({str(tmp_path / 'delta')!r})\n"
        f"print(session.read.format('delta').load({str(tmp_path / 'delta')!r}).count())\n"
        "rows.writeTo('ice.db.numbers').create()\n"
        "print(session.table('ice.db.numbers').count())\n"
        "options = {'kafka.bootstrap.servers': '127.0.0.1:1', 'subscribe': 'a'}\n"
        "print(session.readStream.format('kafka').options(**options).load().columns[:2])\n"
        "close_session(session)"
    )
    with start_python(code, home) as process:
        shown, errors = process.communicate(timeout=240)
    assert shown.splitlines() == ["3", "3", "['key', 'value']"], errors[-3000:]
