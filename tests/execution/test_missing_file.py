"""A run whose file is missing, as while it is being replaced."""

from datetime import timedelta

from tests.execution.conftest import House

SOURCE = """
with DAG("away") as dag:
    @task
    def t():
        print("done")
    t()
"""


async def test_a_run_waits_for_a_file_that_is_being_replaced(house: House) -> None:
    await house.add_dag("away", SOURCE)
    path = house.dags_folder / "away_file.py"
    text = path.read_text()
    path.unlink()
    async with house.executor(workers=1, file_patience=timedelta(hours=1)):
        (pk,) = await house.queue("away")
        run = await house.until(pk, lambda run: run.waiting_for is not None)
        assert run.waiting_for == "the DAG file away_file.py, which is missing"
        path.write_text(text)
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 1)


async def test_a_run_whose_file_stays_away_fails(house: House) -> None:
    await house.add_dag("away", SOURCE)
    (house.dags_folder / "away_file.py").unlink()
    async with house.executor(workers=1, file_patience=timedelta(seconds=0.2)):
        (pk,) = await house.queue("away")
        (run,) = await house.ended(pk)
    assert run.state == "failed"
    assert run.error is not None
    assert "there is no such file" in run.error


async def test_a_run_that_waits_for_its_file_can_be_cancelled(house: House) -> None:
    await house.add_dag("away", SOURCE)
    (house.dags_folder / "away_file.py").unlink()
    async with house.executor(workers=1, file_patience=timedelta(hours=1)):
        (pk,) = await house.queue("away")
        await house.until(pk, lambda run: run.waiting_for is not None)
        await house.cancel(pk)
        (run,) = await house.ended(pk)
    assert run.state == "cancelled"
