"""Structured streaming in tasks: each file once, and a query that ends with a cancelled run."""

from pathlib import Path

import anyio
import pytest

from tests.executor.conftest import House
from tests.services.clusters.spark import TrainedHome

pytestmark = [pytest.mark.timeout(600), pytest.mark.soak]

SOURCE = """
    IN, OUT, MARK = PATHS

    def query(spark):
        frame = spark.readStream.schema("n int").json(IN)
        writer = frame.writeStream.format("parquet").option("checkpointLocation", OUT + "/checkpoint")
        return writer.option("path", OUT + "/rows")

    with DAG("loads"):
        @task
        def load(spark):
            query(spark).trigger(availableNow=True).start().awaitTermination()
            rows = sorted(row.n for row in spark.read.parquet(OUT + "/rows").collect())
            print("rows", rows, "active", len(spark.streams.active))
        load()

    with DAG("streams"):
        @task
        def stream(spark):
            running = query(spark).trigger(processingTime="200 milliseconds").start()
            Path(MARK).touch()
            running.awaitTermination()
        stream()
    """


async def test_each_run_takes_what_is_there_now_and_a_cancel_stops_the_query(
    house: House, trained_home: TrainedHome, tmp_path: Path
) -> None:
    trained_home.lend_archive(house.home)
    incoming, mark = tmp_path / "in", tmp_path / "mark"
    incoming.mkdir()
    paths = (str(incoming), str(tmp_path / "out"), str(mark))
    source = SOURCE.replace("PATHS", repr(paths))
    await house.add_dag("loads", source, needs_spark=True, tasks=[("load", ())])
    await house.add_dag("streams", source, needs_spark=True, tasks=[("stream", ())])
    logs = []
    async with house.executor(workers=1, prewarm=False) as _:
        for number in (1, 2):
            (incoming / f"{number}.json").write_text(f'{{"n": {number}}}\n')
            logs.append(await _load(house))
        (pk,) = await house.queue("streams")
        with anyio.fail_after(120):
            while True:
                if mark.exists():
                    break
                await anyio.sleep(0.1)
        await house.cancel(pk)
        (run,) = await house.ended(pk, timeout=60)
        assert run.state == "cancelled"
        # Were the query still active, Spark would refuse a second one on its checkpoint.
        (incoming / "3.json").write_text('{"n": 3}\n')
        logs.append(await _load(house))
    assert "rows [1] active 0" in logs[0]
    assert "rows [1, 2] active 0" in logs[1]
    assert "rows [1, 2, 3] active 0" in logs[2]


async def _load(house: House) -> str:
    (pk,) = await house.queue("loads")
    (run,) = await house.ended(pk, timeout=240)
    assert (run.state, run.error) == ("success", None)
    return house.log(run)
