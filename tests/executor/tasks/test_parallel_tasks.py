"""Tasks of a run side by side, in a real worker."""

import pytest

from tests.executor.conftest import House
from tests.services.clusters.spark import TrainedHome

SOURCE = """
    with DAG("wide", max_parallel_tasks=3):
        @task
        def meet(name):
            here = Path(FOLDER)
            (here / name).touch()
            deadline = time.monotonic() + 20
            while len(list(here.iterdir())) < 2:
                assert time.monotonic() < deadline, "the other task did not come"
                time.sleep(0.02)
            print("met", name)
            return name

        @task(timeout=0.3)
        def late():
            while True:
                time.sleep(0.01)

        @task
        def last(one, other):
            print("last", one, other)

        last(meet("one"), meet("other"))
        late()
    """
TASKS = (("meet", ()), ("meet__1", ()), ("last", ("meet", "meet__1")), ("late", ()))


async def test_tasks_meet_a_timeout_ends_one_and_the_log_tells_them_apart(house: House) -> None:
    folder = house.folder / "meeting"
    folder.mkdir()
    await house.add_dag("wide", SOURCE.replace("FOLDER", repr(str(folder))), tasks=TASKS)
    (pk,) = await house.queue("wide")
    async with house.executor():
        (run,) = await house.ended(pk)
    states = {name: one.state for name, one in (await house.tasks(pk)).items()}
    assert states == {"meet": "success", "meet__1": "success", "last": "success", "late": "failed"}
    assert "the task did not end within 0:00:00.300000" in (run.error or "")
    log = house.log(run)
    assert "[meet__1] met other" in log
    assert "[last] last one other" in log


SPARK_SOURCE = """
    with DAG("spark", max_parallel_tasks=2):
        @task
        def pool(spark):
            return spark.sparkContext.getLocalProperty("spark.scheduler.pool"), spark.range(9).count()

        @task(timeout=3)
        def slow(spark):
            nap = lambda rows: (time.sleep(60), rows)[1]
            spark.sparkContext.parallelize(range(2), 2).mapPartitions(nap).count()

        @task
        def show(one, other):
            print("pools", one, other)

        show(pool(), pool())
        slow()
    """


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_tasks_have_a_pool_each_and_the_timeout_of_one_ends_its_jobs_alone(
    house: House, trained_home: TrainedHome
) -> None:
    trained_home.lend_archive(house.home)
    tasks = [("pool", ()), ("pool__1", ()), ("show", ("pool", "pool__1")), ("slow", ())]
    await house.add_dag("spark", SPARK_SOURCE, needs_spark=True, tasks=tasks)
    (pk,) = await house.queue("spark")
    async with house.executor() as _:
        (run,) = await house.ended(pk, timeout=300)
    states = {name: one.state for name, one in (await house.tasks(pk)).items()}
    assert states == {"pool": "success", "pool__1": "success", "show": "success", "slow": "failed"}
    assert "the task did not end within 0:00:03" in (run.error or "")
    assert "pools ('pool', 9) ('pool__1', 9)" in house.log(run)
    assert "which has not been configured" not in house.log(run)
