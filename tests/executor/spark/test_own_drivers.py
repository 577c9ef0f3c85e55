"""Runs with a Spark application of their own: in submit mode, or with settings that only a new JVM can have."""

import pytest

from tests.executor.conftest import House
from tests.services.clusters.spark import TrainedHome
from triggerer.store.schema.models import DagRun

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

SHOWS = """
    with DAG("DAG_ID", OPTIONS):
        @task
        def show(spark):
            context = spark.sparkContext
            conf = [spark.conf.get(key, None) for key in ("spark.note", "spark.sql.shuffle.partitions")]
            print("seen", context.applicationId, context.appName, *conf, spark.range(5).count())
        show()
    """
PARTITIONS = '"spark.sql.shuffle.partitions": 7'


async def _add(house: House, dag_id: str, options: str) -> int:
    source = SHOWS.replace("DAG_ID", dag_id).replace("OPTIONS", options)
    await house.add_dag(dag_id, source, needs_spark=True, tasks=[("show", ())])
    (pk,) = await house.queue(dag_id)
    return pk


async def _ended(house: House, pk: int) -> tuple[DagRun, list[str]]:
    (run,) = await house.ended(pk, timeout=280)
    assert (run.state, run.error) == ("success", None)
    (line,) = [line for line in house.log(run).splitlines() if line.startswith("seen ")]
    return run, line.split()[1:]


@pytest.mark.soak
async def test_a_dag_with_settings_of_its_own_gets_a_jvm_and_others_keep_theirs(
    house: House, trained_home: TrainedHome
) -> None:
    trained_home.lend_archive(house.home)
    async with house.executor(workers=1, prewarm=False) as _:
        warm = await _add(house, "warm", "")
        _, (first_id, *_) = await _ended(house, warm)
        own = await _add(house, "own", f'spark_conf={{"spark.note": "x", {PARTITIONS}}}')
        _, (own_id, *rest) = await _ended(house, own)
        again = await _add(house, "again", f"spark_conf={{{PARTITIONS}}}")
        _, (last_id, *last) = await _ended(house, again)
    assert own_id != first_id
    assert rest[0] == "own"
    assert rest[-3:] == ["x", "7", "5"]
    assert last_id == first_id
    assert last[-3:] == ["None", "7", "5"]


@pytest.mark.soak
async def test_in_the_mode_submit_each_run_is_an_application_with_its_name(
    house: House, trained_home: TrainedHome
) -> None:
    trained_home.lend_archive(house.home)
    spark = {"mode": "submit", "master": "local[2]"}
    async with house.executor(workers=1, prewarm=False, spark=spark) as _:
        first = await _add(house, "one", "")
        _, seen = await _ended(house, first)
        second = await _add(house, "two", "")
        _, other = await _ended(house, second)
    assert seen[1] == "one"
    assert other[1] == "two"
    assert seen[0] != other[0]
