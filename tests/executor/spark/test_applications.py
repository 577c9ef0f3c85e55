"""Tasks of the kind SparkApplication: spark-submit from the run's process, in client mode."""

from pathlib import Path

import anyio
import psutil
import pytest

from tests.executor.conftest import House
from tests.services.clusters.spark import TrainedHome
from triggerer.domain.outputs import output_token

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

SUBMITS = """
    from triggerer import SparkApplication

    with DAG("submits"):
        SparkApplication("app", "app.py", arguments=ARGUMENTS, conf={"spark.app.note": "x"})
    """
APPLICATION = """
import os, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

print("token", os.environ["TRIGGERER_RUN_TOKEN"], os.environ["TRIGGERER_DAG_ID"])
spark = SparkSession.builder.getOrCreate()
print("rows", spark.range(10).count(), spark.conf.get("spark.app.note"), sys.argv[1:])
if sys.argv[1] == "fail":
    raise ValueError("the numbers are wrong")
if sys.argv[1] == "wait":
    Path(sys.argv[2]).write_text(str(os.getpid()))
    time.sleep(600)
"""


async def _submit(house: House, *arguments: object) -> int:
    source = SUBMITS.replace("ARGUMENTS", repr(list(arguments)))
    await house.add_dag("submits", source, tasks=[("app", ())])
    (house.dags_folder / "app.py").write_text(APPLICATION)
    (pk,) = await house.queue("submits")
    return pk


@pytest.mark.soak
async def test_an_application_runs_with_its_settings_and_the_identity_of_its_output(
    house: House, trained_home: TrainedHome
) -> None:
    pk = await _submit(house, "go", 3)
    async with house.executor(prewarm=False):
        (run,) = await house.ended(pk, timeout=240)
    log = house.log(run)
    assert (run.state, run.error) == ("success", None)
    assert f"token {output_token('submits', run.run_id, 'app', 0)} submits" in log
    assert "rows 10 x ['go', '3']" in log
    assert "INFO SparkContext" not in log


@pytest.mark.soak
async def test_the_error_is_the_applications_own(house: House, trained_home: TrainedHome) -> None:
    pk = await _submit(house, "fail")
    async with house.executor(prewarm=False):
        (run,) = await house.ended(pk, timeout=240)
    assert run.state == "failed"
    assert "the application app.py ended with code 1: ValueError: the numbers are wrong" in (
        run.error or ""
    )


@pytest.mark.soak
async def test_a_cancelled_run_stops_its_application(
    house: House, trained_home: TrainedHome, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    pk = await _submit(house, "wait", str(mark))
    async with house.executor(prewarm=False):
        with anyio.fail_after(200):
            while True:
                if mark.exists() and mark.read_text():
                    break
                await anyio.sleep(0.1)
        process = psutil.Process(int(mark.read_text()))
        await house.cancel(pk)
        (run,) = await house.ended(pk, timeout=60)
        with anyio.fail_after(20):
            while True:
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    break
                await anyio.sleep(0.1)
    assert run.state == "cancelled"
