"""Every column that holds JSON gives back the types and the numbers that were stored, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from sqlalchemy import inspect, select

from tests.actors import TESTER
from tests.store.dags.test_dag_sync import asset, dag, file, rows, sync
from tests.store.seeding import FENCE, NOW, SOURCE, Event, add_asset, add_dag, record, recording
from triggerer.domain.watchers.stream_states import StateChange
from triggerer.errors import RowRefused
from triggerer.operations.key_backfills import start_key_backfill
from triggerer.operations.triggering import trigger_dag
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.listing import list_asset_events
from triggerer.store.runs.listing import list_runs
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    Audit,
    Backfill,
    Base,
    CleaningTurn,
    Dag,
    DagFile,
    DagRun,
    InstanceReport,
    ProcessSettings,
    Trigger,
    Watcher,
    WatcherPosition,
)
from triggerer.store.schema.models.base import Json
from triggerer.store.streams.states import load_state, save_states

NUMBERS: dict[str, Any] = {
    "large": 1e20,
    "whole": 1e16,
    "one": 1.0,
    "int": 1,
    "true": True,
    "zero": -0.0,
    "longest": 2**64 - 1,
    "tiny": 5e-324,
    "digits": 0.1 + 0.2,
    "keys": {"z": 1, "a": 2},
}


def _audit(**values: Any) -> Audit:
    return Audit(at=NOW, actor="a", role="admin", via="cli", action="x.y", subject="s", **values)


# By column, a function that makes a row with the given value in the column.
COLUMNS: dict[str, Callable[[Any], Any]] = {
    "asset.extra": lambda value: Asset(id=5, name="a", uri="a", created_at=NOW, extra=value),
    "asset_event.extra": lambda value: AssetEvent(
        asset_id=1, extra=value, timestamp=NOW, idempotency_key="k"
    ),
    "audit.before": lambda value: _audit(before=value),
    "audit.after": lambda value: _audit(after=value),
    "backfill.params": lambda value: Backfill(
        dag_id="other",
        from_date=NOW,
        to_date=NOW,
        reprocess="none",
        max_active=1,
        created_at=NOW,
        params=value,
    ),
    "cleaning_turn.deleted": lambda value: CleaningTurn(id=1, made_at=NOW, deleted=value),
    "dag.tags": lambda value: Dag(dag_id="z", path="d", updated_at=NOW, tags=value),
    "dag.schedule": lambda value: Dag(dag_id="z", path="d", updated_at=NOW, schedule=value),
    "dag.params": lambda value: Dag(dag_id="z", path="d", updated_at=NOW, params=value),
    "dag.tasks": lambda value: Dag(dag_id="z", path="d", updated_at=NOW, tasks=value),
    "dag_file.errors": lambda value: DagFile(
        path="d", parsed_at=NOW, parse_seconds=0.1, errors=value
    ),
    "dag_file.warnings": lambda value: DagFile(
        path="d", parsed_at=NOW, parse_seconds=0.1, warnings=value
    ),
    "instance_report.report": lambda value: InstanceReport(
        instance_id="h:1:a", version=1, report=value, reported_at=NOW
    ),
    "process_settings.settings": lambda value: ProcessSettings(
        process="h:1", settings=value, saved_at=NOW
    ),
    "trigger.kwargs": lambda value: Trigger(
        id=5, digest="u", classpath="m.T", kwargs=value, stream_digest="stream"
    ),
}
# Rows with these columns refer to rows of other tables, so a separate test stores them.
OTHERS = {
    "dag_run.params",
    "dag_run.again",
    "watcher_position.position",
    "watcher_position.reemit",
    "watcher_position.rewound_to",
}


def test_every_column_of_json_is_known_here() -> None:
    found = {
        f"{table.name}.{column.name}"
        for table in Base.metadata.tables.values()
        for column in table.columns
        if column.type is Json
    }
    assert found == COLUMNS.keys() | OTHERS


@pytest.mark.parametrize("column", COLUMNS)
async def test_a_number_comes_back_as_it_was_stored(watched: Database, column: str) -> None:
    await add_dag(watched, "other", None)
    row = COLUMNS[column](NUMBERS)
    async with watched.transaction() as session:
        session.add(row)
    await _check(watched, type(row), column.split(".")[1])


async def test_the_columns_of_runs_and_positions_return_the_stored_values(
    watched: Database,
) -> None:
    await add_dag(watched, "d", None)
    async with watched.transaction() as session:
        session.add(Watcher(id=1, asset_id=1, name="w", trigger_id=1, path="d", updated_at=NOW))
        session.add(
            DagRun(
                dag_id="d", run_id="r", run_type="manual", state="queued", run_after=NOW,
                queued_at=NOW, params=NUMBERS, again=NUMBERS,
            )
        )  # fmt: skip
        await session.flush()
        session.add(
            WatcherPosition(
                watcher_id=1, lane="0", stream_digest="stream", since=NOW,
                position=NUMBERS, reemit=NUMBERS, rewound_to=NUMBERS,
            )
        )  # fmt: skip
    for model, column in (
        (DagRun, "params"),
        (DagRun, "again"),
        (WatcherPosition, "position"),
        (WatcherPosition, "reemit"),
        (WatcherPosition, "rewound_to"),
    ):
        await _check(watched, model, column)


async def _check(database: Database, model: type[Any], column: str) -> None:
    async with database.reading() as session:
        key = next(iter(inspect(model).primary_key))
        found = (await session.scalars(select(getattr(model, column)).order_by(key))).all()
    assert repr(found[-1]) == repr(NUMBERS)
    assert repr(orjson.loads(orjson.dumps(found[-1]))) == repr(NUMBERS)


@pytest.mark.parametrize("state", [1.0, 1, -0.0, 1e20, 2**64 - 1, "1.0", True, [1.0], None])
async def test_the_state_of_a_stream_may_be_a_number(watched: Database, state: Any) -> None:
    change = StateChange(FENCE, ("stream",), orjson.dumps(state), lambda error: None)
    async with watched.transaction() as session:
        await perform(session, save_states([change]))
        assert repr(await load_state(session, FENCE.stream_digest)) == repr(state)


async def test_a_run_has_the_numbers_that_it_was_triggered_with(database: Database) -> None:
    await add_dag(database, "d", None, params={"default": 1.0})
    async with database.transaction() as session:
        await trigger_dag(session, TESTER, "d", params=NUMBERS)
        (run,) = await list_runs(session, dag="d")
    assert repr(run.params) == repr({"default": 1.0} | NUMBERS)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"a": "x\0y"}, "a param of the run has a NUL character"),
        ({"n": 2**64}, "an integer of more than 64 bits"),
        ({"n": float("nan")}, "NaN at n"),
    ],
)
async def test_params_that_the_store_would_not_give_back_are_refused(
    database: Database, params: dict[str, Any], said: str
) -> None:
    await add_dag(database, "d", None)
    with pytest.raises(RowRefused, match=said):
        async with database.transaction() as session:
            await trigger_dag(session, TESTER, "d", params=params)


async def test_a_value_that_an_orm_row_would_lose_is_refused_with_the_reason(
    database: Database,
) -> None:
    with pytest.raises(
        RowRefused, match=r"^a value has NaN at n, which JSON does not have"
    ) as raised:
        async with database.transaction() as session:
            session.add(COLUMNS["asset.extra"]({"n": float("nan")}))
    assert raised.value.hint == "leave the value out, or use None"


async def test_params_of_a_backfill_that_the_store_would_not_give_back_are_refused(
    database: Database,
) -> None:
    await add_dag(database, "d", None)
    for value, said in (("x\0y", "NUL"), (2**64, "64 bits"), (float("inf"), "Infinity at p")):
        with pytest.raises(RowRefused, match=f"a param of the backfill has .*{said}"):
            async with database.transaction() as session:
                await start_key_backfill(session, TESTER, "d", ["k"], params={"p": value})


async def test_an_event_has_the_numbers_that_it_was_emitted_with(database: Database) -> None:
    await add_asset(database, 1, "a")
    async with database.transaction() as session:
        await record_events(session, [NewAssetEvent(1, NUMBERS)])
        (event,) = await list_asset_events(session)
    assert repr(event.extra) == repr(NUMBERS)


async def test_an_event_of_a_watcher_has_the_numbers_of_its_payload(database: Database) -> None:
    await add_asset(database, 1, "a")
    async with recording(database) as recorder:
        await record(recorder, Event(NUMBERS, "key", source=SOURCE))
    async with database.reading() as session:
        (event,) = await list_asset_events(session)
    assert repr(event.extra) == repr(NUMBERS)


@pytest.mark.parametrize(("before", "after"), [(1, 1.0), (1, True), (0.0, -0.0)])
async def test_a_param_that_only_changes_its_type_is_stored(
    database: Database, before: Any, after: Any
) -> None:
    await sync(database, file(dags=(dag("d", params={"n": before}),)))
    changed = await sync(database, file(dags=(dag("d", params={"n": after}),)))
    assert changed.dag_ids == {"d"}
    (row,) = await rows(database, Dag)
    assert repr(row.params) == repr({"n": after})
    assert not (await sync(database, file(dags=(dag("d", params={"n": after}),)))).dag_ids


async def test_an_extra_of_an_asset_that_only_changes_its_type_is_stored(
    database: Database,
) -> None:
    for value in (1, 1.0):
        await sync(database, file(assets=(asset("x", note=value),)))
    (row,) = await rows(database, Asset)
    assert repr(row.extra) == repr({"note": 1.0})
