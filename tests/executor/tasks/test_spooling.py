"""A task that reads very many events reads them from files, which are gone after its run."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.executor.conftest import House
from tests.services.clusters.spark import TrainedHome

# A stand-in for the Spark session reads the files, as Spark does in local mode.
READS = """
    import pyarrow.parquet as parquet
    import pyarrow as pa

    class Reader:
        def parquet(self, *files):
            self.files = [file.removeprefix("file://") for file in files]
            return pa.concat_tables([parquet.read_table(file) for file in self.files])

        def createDataFrame(self, table):
            raise AssertionError("the events came by pages")

    class Session(Reader):
        class sparkContext:
            master = "local[2]"
        read = property(lambda self: self)

    asset = Asset("x-in")
    with DAG("reads", schedule=asset):
        @task(outlets=[Asset("x-out")], inlets=[asset])
        def read(triggering_asset_events, inlet_events, outlet_events):
            session = Session()
            table = triggering_asset_events[asset].to_dataframe(session)
            numbers = table["extra"].combine_chunks().field("n").to_pylist()
            assert numbers == list(range(25_000))
            assert table["asset_name"].to_pylist()[:2] == ["x-in", "x-in"]
            every = inlet_events[asset].to_dataframe(session)
            assert every.num_rows == 25_000
            assert every.equals(table)
            texts = triggering_asset_events[asset].to_dataframe
            try:
                texts(session, extra_schema="n int")
            except AttributeError:
                # The stand-in has no withColumn; the files have text.
                pass
            (file,) = session.files
            assert parquet.read_table(file)["extra"][3].as_py() == '{"n":3}'
            outlet_events["x-out"].extra = {"files": session.files}
        read()
    """


async def test_a_task_reads_many_events_from_files_that_are_gone_after_the_run(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag("reads", READS)
    dead, alive = left_behind(house, "dead"), left_behind(house, "alive")
    lock = os.open(alive / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (pk,) = await house.queue("reads", state="failed")
    await house.trigger_with(pk, "reads", "x-in", [{"n": n} for n in range(25_000)])
    await house.change_run(pk, state="queued")
    async with house.executor():
        (run,) = await house.ended(pk)
        assert (run.state, run.error) == ("success", None)
        (event,) = await house.events("x-out")
        (file,) = event.extra["files"]
        assert Path(file).is_relative_to(house.home / "spool")
        await gone(Path(file))
        assert not dead.exists()
        assert alive.exists()
    os.close(lock)
    assert [folder.name for folder in (house.home / "spool").iterdir()] == ["alive"]


def left_behind(house: House, name: str) -> Path:
    """Make a spool folder as a killed executor leaves it behind."""
    folder = house.home / "spool" / name
    (folder / "run-1-x" / "y").mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "run-1-x" / "y" / "part-00000.parquet").write_bytes(b"PAR1")
    return folder


async def gone(file: Path) -> None:
    with anyio.fail_after(10):
        while file.exists():  # noqa: ASYNC110  (a folder sends no notice)
            await anyio.sleep(0.05)


async def test_events_that_cannot_be_spooled_come_by_pages(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triggerer.executor.spooling.spools._MODULE", "triggerer.no_such_module")
    source = READS.replace('raise AssertionError("the events came by pages")', "sys.exit(0)")
    await house.add_dag("reads", source)
    (pk,) = await house.queue("reads", state="failed")
    await house.trigger_with(pk, "reads", "x-in", [{"n": n} for n in range(25_000)])
    await house.change_run(pk, state="queued")
    async with house.executor():
        (run,) = await house.ended(pk)
    assert "sys.exit(0)" in (run.error or "")


async def test_a_run_that_ends_while_it_waits_for_its_files_leaves_no_files(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triggerer.executor.spooling.spools._AT_ONCE", 1)
    await house.add_dag("reads", READS)
    (pk,) = await house.queue("reads", state="failed")
    await house.trigger_with(pk, "reads", "x-in", [{"n": n} for n in range(25_000)])
    await house.change_run(pk, state="queued")
    async with house.executor() as executor:
        limit = executor._spools._limit  # noqa: SLF001
        async with limit:
            await until(lambda: limit.statistics().tasks_waiting == 1)
            await house.cancel(pk)
            await until(lambda: not executor.executing)
            assert limit.statistics().tasks_waiting == 0
        (run,) = await house.ended(pk)
        assert run.state == "cancelled"
        assert list((house.home / "spool").glob("*/run-*")) == []


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not holds():  # noqa: ASYNC110  (a limiter has no event)
            await anyio.sleep(0.02)


SPARK = """
    asset = Asset("x-in")
    with DAG("reads", schedule=asset):
        @task(outlets=[Asset("x-out")])
        def read(spark, triggering_asset_events, outlet_events):
            events = triggering_asset_events[asset]
            frame = events.to_dataframe(spark)
            from triggerer.worker.spark.dataframes.dataframe import to_dataframe
            rows = [row for page in events.pages() for row in page]
            small = to_dataframe(spark, rows)
            assert frame.schema == small.schema, (frame.schema, small.schema)
            assert frame.exceptAll(small).count() == small.exceptAll(frame).count() == 0
            typed = events.to_dataframe(spark, extra_schema="n int, s string")
            outlet_events["x-out"].extra = {
                "input": frame.inputFiles()[0],
                "sum": frame.selectExpr("sum(extra.n)").first()[0],
                "typed": typed.selectExpr("sum(extra.n)").first()[0],
            }
        read()
    """


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_spark_gets_the_same_columns_and_rows_from_files_as_by_pages(
    house: House, trained_home: TrainedHome
) -> None:
    trained_home.lend_archive(house.home)
    await house.add_dag("reads", SPARK, needs_spark=True)
    (pk,) = await house.queue("reads", state="failed")
    extras = [
        {"n": n, "s": None if n % 3 else f"s{n}", "o": {"f": n / 2, "l": [n] * (n % 2)}}
        for n in range(21_000)
    ]
    await house.trigger_with(pk, "reads", "x-in", extras)
    await house.change_run(pk, state="queued")
    async with house.executor():
        (run,) = await house.ended(pk, timeout=240)
    assert (run.state, run.error) == ("success", None)
    (event,) = await house.events("x-out")
    assert "/spool/" in event.extra["input"]
    assert event.extra["sum"] == event.extra["typed"] == sum(range(21_000))
