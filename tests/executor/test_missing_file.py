"""A run whose file is missing or incomplete, for instance while the file is being replaced."""

from datetime import timedelta

import anyio
import pytest

from tests.executor.conftest import House

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


# DAG files that replace or remove themselves while a worker loads them, as a deployment could do.
HALF_WRITTEN = """
from pathlib import Path
Path(__file__).write_text({text!r})
"""
TAKEN_AWAY = """
from pathlib import Path
Path(__file__).unlink()
import away_helper
"""
REPLACED_WITH_ITS_HELPER = """
from pathlib import Path
Path(__file__).with_name("away_helper.py").write_text("")
Path(__file__).write_text({text!r})
import away_helper_of_the_old_version
"""


@pytest.mark.parametrize(
    "first", [HALF_WRITTEN, REPLACED_WITH_ITS_HELPER], ids=["half-written", "with a helper"]
)
async def test_a_file_that_changes_while_it_is_loaded_is_loaded_again(
    house: House, first: str
) -> None:
    await house.add_dag("away", SOURCE)
    path = house.dags_folder / "away_file.py"
    path.write_text(first.format(text=path.read_text()))
    async with house.executor(workers=1, file_patience=timedelta(hours=1)):
        (pk,) = await house.queue("away")
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt, run.error) == ("success", 1, None)


async def test_a_run_waits_for_a_file_that_is_taken_away_while_it_is_loaded(house: House) -> None:
    await house.add_dag("away", SOURCE)
    path = house.dags_folder / "away_file.py"
    text = path.read_text()
    path.write_text(TAKEN_AWAY)
    async with house.executor(workers=1, file_patience=timedelta(hours=1)):
        (pk,) = await house.queue("away")
        await house.until(pk, lambda run: run.waiting_for is not None)
        path.write_text(text)
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 1)


async def test_a_run_waits_for_a_module_of_the_folder_that_has_just_gone(house: House) -> None:
    await house.add_dag("away", SOURCE)
    path = house.dags_folder / "away_file.py"
    loads = house.dags_folder / "loads"
    path.write_text(
        f"open({str(loads)!r}, 'a').write('1')\nimport away_helper\n" + path.read_text()
    )
    async with house.executor(workers=1, file_patience=timedelta(hours=1)):
        (pk,) = await house.queue("away")
        while not loads.exists():  # noqa: ASYNC110  (another process writes it)
            await anyio.sleep(0.02)
        (house.dags_folder / "away_helper.py").write_text("")
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 1)


@pytest.mark.parametrize("patience", [timedelta(), timedelta(hours=1)], ids=["none", "an hour"])
async def test_a_file_that_is_cut_and_has_its_time_from_before_is_loaded_again(
    house: House, patience: timedelta
) -> None:
    """A file system may cut a file before it sets the file's modification time."""
    await house.add_dag("away", SOURCE)
    path = house.dags_folder / "away_file.py"
    text = path.read_text()
    path.write_text("")
    await anyio.sleep(2.1)  # now the file's modification time shows no writer
    async with house.executor(workers=1, file_patience=patience):
        (pk,) = await house.queue("away")
        await house.until(pk, lambda run: run.state == "running")
        await anyio.sleep(1)  # time in which the worker loads the empty file
        path.write_text(text)
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt, run.error) == ("success", 1, None)


async def test_a_file_that_lacks_the_dag_and_stays_as_it_is_fails_the_run(house: House) -> None:
    await house.add_dag("away", SOURCE)
    (house.dags_folder / "away_file.py").write_text("")
    async with house.executor(workers=1, file_patience=timedelta(hours=1)):
        (pk,) = await house.queue("away")
        (run,) = await house.ended(pk)
    assert (run.state, run.error) == (
        "failed",
        "away_file.py does not define the DAG away any more",
    )
