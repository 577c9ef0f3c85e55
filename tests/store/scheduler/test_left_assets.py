"""The scheduler's look at a DAG is cheap, even if many queued events are of an asset that left the schedule."""

from typing import Any

import orjson
import pytest
from sqlalchemy import text

from tests.store.explaining import Explained, rows_read
from tests.store.partitions import asset, emit_keys, keyed_runs, partitioned
from tests.store.seeding import add_asset, add_dag, asset_json
from triggerer.scheduler import Scheduler
from triggerer.store.dags import candidates
from triggerer.store.dags.snapshots import ReadDags
from triggerer.store.database.transactions import Database
from triggerer.store.partitions import keys as partitions

LEFT = 20_000
_EVENTS = f"""
INSERT INTO asset_event (asset_id, extra, timestamp, watcher_id, idempotency_key, ordinal)
SELECT 1, '{{}}', now(), 0, 'left-' || n, 0 FROM generate_series(1, {LEFT}) AS n"""
_QUEUED = """
INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id) SELECT 'report', id, 1 FROM asset_event"""


@pytest.mark.parametrize(
    "schedule", [asset_json("here"), partitioned(asset("here"))], ids=["assets", "partitions"]
)
@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_on_postgres_a_look_does_not_read_leftover_events_of_an_asset(
    postgres: Database, schedule: dict[str, Any], is_analyzed: bool
) -> None:
    await add_asset(postgres, 1, "left")
    await add_asset(postgres, 2, "here")
    await add_dag(postgres, "report", schedule, assets=[2], events_per_run=1)
    async with postgres.transaction() as session:
        await session.execute(text(_EVENTS))
        await session.execute(text(_QUEUED))
    (event,) = await emit_keys(postgres, ["eu"], asset_id=2)
    async with postgres.transaction() as session:
        await session.execute(text("ANALYZE" if is_analyzed else "SELECT 1"))
    steps = [
        candidates.CANDIDATES(),
        ReadDags(["report"], 100),
        partitions.UNDIVIDED(dag_id="report", limit=1_000),
    ]
    for step in steps:
        ((plan,),) = await postgres.perform_step(Explained(step, "(ANALYZE, FORMAT JSON)"))
        assert rows_read(orjson.loads(plan)[0]["Plan"]) < 100, plan
    assert await Scheduler(postgres).run_once() == 1
    if "partitioned" in schedule:
        assert await keyed_runs(postgres, "report") == [("eu", [event])]
