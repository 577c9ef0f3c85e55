"""Runs that use a pool wait for its slots. Other runs do not wait."""

from datetime import timedelta
from itertools import pairwise

from tests.executor.conftest import House


async def test_a_pool_of_one_slot_has_its_runs_one_after_the_other(house: House) -> None:
    """When a run ends, the next run starts at once, and not only at the executor's next sweep."""
    for dag_id in ("one", "two"):
        await house.add_dag(
            dag_id,
            f"""
            with DAG("{dag_id}"):
                @task(pool="db")
                def t():
                    pass
                t()
            """,
            pools="db",
        )
    pks = [(await house.queue(dag_id, pools="db"))[0] for dag_id in ("one", "two") * 2]
    async with house.executor(workers=2, pools={"db": 1}, sweep_every=timedelta(hours=1)):
        runs = await house.ended(*pks)
    assert {run.state for run in runs} == {"success"}
    spans = sorted((run.started_at, run.ended_at) for run in runs)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
