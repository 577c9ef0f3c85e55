"""Tasks read the events that they were started for, and emit their own exactly once."""

import pytest

from tests.executor.conftest import House


@pytest.mark.rule("a run gets its events in the wrong order, or events that are newer than the run")
async def test_a_task_reads_twenty_thousand_triggering_events_in_order(any_house: House) -> None:
    house = any_house
    await house.add_dag(
        "reads",
        """
        asset = Asset("x-in")
        other = Asset("x-other")
        with DAG("reads", schedule=asset | other):
            @task
            def read(triggering_asset_events):
                begun = time.monotonic()
                events = triggering_asset_events[asset]
                assert len(events) == 20_000
                assert events[-1].extra == {"n": 19_999}
                assert [e.extra["n"] for e in events[5:7]] == [5, 6]
                assert [event.extra["n"] for event in events] == list(range(20_000))
                assert list(triggering_asset_events) == [asset]
                assert triggering_asset_events["x-in"] is events
                assert list(triggering_asset_events[other]) == []
                assert [len(e) for e in triggering_asset_events.values()] == [20_000]
                first = events[0]
                assert (first.uri, first.name) == ("x-in", "x-in")
                assert first.source_dag_run is None
                assert first.timestamp.tzinfo is not None
                try:
                    triggering_asset_events["x-nothing"]
                except KeyError:
                    pass
                else:
                    raise AssertionError("an unknown asset has no events")
                print(f"read in {time.monotonic() - begun:.2f} s")
            read()
        """,
    )
    (pk,) = await house.queue("reads", state="failed")
    await house.trigger_with(pk, "reads", "x-in", [{"n": n} for n in range(20_000)])
    await house.change_run(pk, state="queued")
    async with house.executor():
        (run,) = await house.ended(pk)
    assert (run.state, run.error) == ("success", None)


async def test_outlets_with_the_longest_names_and_uris_get_their_events(any_house: House) -> None:
    house = any_house
    await house.add_dag(
        "emits",
        """
        with DAG("emits"):
            @task(outlets=[Asset("x-long:" + "u" * 1493), Asset("x-long:" + "v" * 1493)])
            def emit():
                pass
            emit()
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("emits"))
    assert (run.state, run.error) == ("success", None)
    first, second = [await house.events("x-long:" + one * 1493) for one in "uv"]
    assert (len(first), len(second)) == (1, 1)
    assert first[0].idempotency_key != second[0].idempotency_key


async def test_each_declared_outlet_gets_one_event_and_aliases_what_was_added(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag(
        "emits",
        """
        plain, filled, yielded = Asset("x-plain"), Asset("x-filled"), Asset("x-yielded")
        alias = AssetAlias("some")
        with DAG("emits"):
            @task(outlets=[plain, filled])
            def fills(outlet_events):
                outlet_events[filled].extra = {"rows": 3}
                assert set(outlet_events.keys()) == {plain, filled}

            @task(outlets=[yielded, alias])
            def yields(outlet_events):
                yield Metadata(yielded, {"a": 1})
                yield Metadata(Asset("x-through"), {"b": 2}, alias=alias)
                outlet_events["some"].add(Asset("x-added"), extra={"c": 3})
                outlet_events["some"].add(Asset("x-added"), extra={"c": 4})

            @task(inlets=[yielded, alias])
            def looks(inlet_events):
                assert inlet_events[yielded][-1].extra == {"a": 1}
                assert inlet_events[yielded][-1].source_dag_run.dag_id == "emits"
                assert inlet_events[yielded][-1].source_task == "yields"
                assert len(inlet_events[yielded]) == 1
                assert [e.extra for e in inlet_events[alias][:]] == [{"b": 2}, {"c": 3}, {"c": 4}]

            fills() >> yields() >> looks()
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("emits"))
    assert (run.state, run.error) == ("success", None)
    found = {}
    for uri in ("x-plain", "x-filled", "x-yielded", "x-through", "x-added"):
        found[uri] = [(event.extra, event.ordinal) for event in await house.events(uri)]
    assert found == {
        "x-plain": [({}, 0)],
        "x-filled": [({"rows": 3}, 0)],
        "x-yielded": [({"a": 1}, 0)],
        "x-through": [({"b": 2}, 0)],
        "x-added": [({"c": 3}, 0), ({"c": 4}, 1)],
    }
    (event,) = await house.events("x-filled")
    assert (event.source_dag_id, event.source_run_id) == ("emits", run.run_id)
    assert event.source_task_id == "fills"


async def test_a_repeated_attempt_emits_nothing_twice(any_house: House) -> None:
    house = any_house
    await house.add_dag(
        "twice",
        """
        asset = Asset("x-twice")
        with DAG("twice"):
            @task(outlets=[asset])
            def emits(dag_run, outlet_events):
                outlet_events[asset].extra = {"attempt": dag_run.attempt}
            emits()
        """,
    )
    async with house.executor():
        (pk,) = await house.queue("twice")
        await house.ended(pk)
        # Queue the run again, as if its process had died between the end of the task and the end of the run.
        await house.change_run(pk, state="queued", ended_at=None)
        house.database.wakeups.publish_everything()
        run = await house.until(pk, lambda run: run.state == "success" and run.attempt == 2)
    assert run.state == "success"
    assert [event.extra for event in await house.events("x-twice")] == [{"attempt": 1}]


async def test_an_extra_that_cannot_be_stored_fails_its_task_alone(any_house: House) -> None:
    house = any_house
    await house.add_dag(
        "odd",
        """
        asset = Asset("x-odd")
        extras = [{"f": open}, {"nul": "a\\x00b"}, {"large": "x" * 2_000_000}, {"good": 1}]
        with DAG("odd"):
            @task(outlets=[asset])
            def emits(outlet_events, params):
                outlet_events[asset].extra = extras[params["which"]]
            emits()
        """,
    )
    async with house.executor():
        pks = [(await house.queue("odd", params={"which": which}))[0] for which in range(4)]
        runs = await house.ended(*pks)
    assert [run.state for run in runs] == ["failed", "failed", "failed", "success"]
    assert "is not JSON" in (runs[0].error or "")
    assert "NUL" in (runs[1].error or "")
    assert "refused" in (runs[2].error or "")
    assert [event.extra for event in await house.events("x-odd")] == [{"good": 1}]
