"""If a DAG file does not load, its runs wait until the file loads again or their DAG is gone."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, update

from tests.executor.conftest import House
from triggerer.domain.dag_files.merging import merge
from triggerer.domain.dag_files.parsed import ParsedFile, Problem
from triggerer.store.dags.listing import list_dags
from triggerer.store.dags.sync import read_incumbents, sync_folder
from triggerer.store.listing.views import RunView
from triggerer.store.runs.listing import list_runs
from triggerer.store.schema.models import DagFile
from triggerer.store.schema.models.dags import NEVER

SOURCE = """
with DAG("{dag_id}") as dag:
    @task
    def t():
        print("done")
    t()
"""
PROBLEM = Problem("ill_file.py", 3, "syntax error")


async def add_dag(house: House, dag_id: str) -> None:
    await house.add_dag(dag_id, SOURCE.format(dag_id=dag_id))
    row = {"path": f"{dag_id}_file.py", "parsed_at": datetime.now(UTC), "parse_seconds": 0.1}
    async with house.database.transaction() as session:
        await session.execute(insert(DagFile), [row])


async def parse(house: House, *, is_broken: bool) -> None:
    """Store the result of a parse of `ill_file.py` alone, as the DAG processor would."""
    errors = (PROBLEM,) if is_broken else ()
    file = ParsedFile("ill_file.py", 0.1, errors=errors, is_broken=is_broken)
    files = {"ill_file.py": file if is_broken else None, "well_file.py": None}
    async with house.database.transaction() as session:
        if not is_broken:
            # Instead of a parse, only clear `is_broken`: the stored definitions of the file are
            # still right.
            await session.execute(
                update(DagFile).where(DagFile.path == "ill_file.py").values(is_broken=False)
            )
        known = [one for one in files.values() if one is not None]
        folder = merge(known, await read_incumbents(session), unusable=frozenset(files))
        await sync_folder(
            session, folder, files, now=datetime.now(UTC), reread=frozenset({"ill_file.py"})
        )


async def view(house: House, pk: int) -> RunView:
    run = await house.run(pk)
    async with house.database.reading() as session:
        (found,) = await list_runs(session, dag=run.dag_id, run_id=run.run_id)
    return found


async def test_runs_of_a_broken_file_wait_and_start_as_soon_as_it_loads(house: House) -> None:
    await add_dag(house, "ill")
    await add_dag(house, "well")
    async with house.executor(workers=1, holds_broken=True, sweep_every=timedelta(hours=1)):
        await parse(house, is_broken=True)
        held = await house.queue("ill", 20)
        await house.ended(*await house.queue("well", 3))
        runs = [await house.run(pk) for pk in held]
        # The held runs are first in the queue, but the runs behind them were executed.
        assert {(run.state, run.attempt, run.held_until) for run in runs} == {("queued", 0, NEVER)}
        shown = await view(house, held[0])
        assert shown.waiting_for == "its file, which does not load: ill_file.py:3: syntax error"
        await parse(house, is_broken=False)
        assert {run.state for run in await house.ended(*held)} == {"success"}
        assert (await view(house, held[0])).waiting_for is None


async def test_a_run_whose_file_only_a_worker_cannot_load_waits_for_the_next_parse(
    house: House,
) -> None:
    await add_dag(house, "ill")
    path = house.dags_folder / "ill_file.py"
    good = path.read_text()
    path.write_text("import a_package_that_is_missing_here\n" + good)
    async with house.executor(
        workers=1,
        holds_broken=True,
        sweep_every=timedelta(hours=1),
        file_patience=timedelta(seconds=0.2),
    ):
        (pk,) = await house.queue("ill")
        run = await house.until(pk, lambda run: run.held_until is not None)
        assert (run.state, run.started_at, run.first_started_at) == ("queued", None, None)
        assert run.held_until is not None
        assert timedelta() < run.held_until - datetime.now(UTC) < timedelta(seconds=10)
        shown = await view(house, pk)
        assert shown.waiting_for is not None
        assert "a_package_that_is_missing_here" in shown.waiting_for
        async with house.database.reading() as session:
            (dag,) = await list_dags(session, dag="ill")
        assert "a_package_that_is_missing_here" in (dag.file_error or "")
        path.write_text(good)
        await parse(house, is_broken=False)
        (run,) = await house.ended(pk)
    assert run.state == "success"


async def test_it_is_tried_again_after_a_while_without_a_parse(house: House) -> None:
    await add_dag(house, "ill")
    path = house.dags_folder / "ill_file.py"
    good = path.read_text()
    path.write_text("import a_package_that_is_missing_here\n" + good)
    async with house.executor(
        workers=1,
        holds_broken=True,
        sweep_every=timedelta(seconds=0.2),
        file_patience=timedelta(seconds=0.2),
    ):
        (pk,) = await house.queue("ill")
        await house.until(pk, lambda run: run.held_until is not None)
        path.write_text(good)
        await house.change_run(pk, held_until=datetime.now(UTC))
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 2)


async def test_a_held_run_fails_once_no_file_defines_its_dag(house: House) -> None:
    await add_dag(house, "ill")
    await parse(house, is_broken=True)
    (house.dags_folder / "ill_file.py").write_text("")
    async with house.executor(workers=1, holds_broken=True, file_patience=timedelta(seconds=0.2)):
        (pk,) = await house.queue("ill")
        await house.until(pk, lambda run: run.held_until is not None)
        async with house.database.transaction() as session:
            files = {"ill_file.py": ParsedFile("ill_file.py", 0.1)}
            folder = merge(files.values(), await read_incumbents(session))
            await sync_folder(session, folder, files, now=datetime.now(UTC))
        (run,) = await house.ended(pk)
    assert run.state == "failed"
    assert run.error == "ill_file.py does not define the DAG ill any more"


async def test_a_held_run_can_be_cancelled(house: House) -> None:
    await add_dag(house, "ill")
    await parse(house, is_broken=True)
    async with house.executor(workers=1, holds_broken=True):
        (pk,) = await house.queue("ill")
        await house.until(pk, lambda run: run.held_until is not None)
        await house.cancel(pk)
        (run,) = await house.ended(pk)
    assert run.state == "cancelled"


@pytest.mark.parametrize("is_held_before", [False, True])
async def test_where_runs_are_to_fail_they_do(house: House, is_held_before: bool) -> None:
    await add_dag(house, "ill")
    await parse(house, is_broken=True)
    (house.dags_folder / "ill_file.py").write_text("def (")
    (pk,) = await house.queue("ill", held_until=NEVER if is_held_before else None)
    async with house.executor(workers=1, holds_broken=False, file_patience=timedelta(seconds=0.2)):
        (run,) = await house.ended(pk)
    assert run.state == "failed"
    assert "syntax error" in (run.error or "")
