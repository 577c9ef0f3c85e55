"""Templates, skipped tasks and `@asset` functions, in real workers."""

from datetime import UTC, datetime

from tests.executor.conftest import House


async def test_the_templated_arguments_of_a_call_are_rendered(house: House) -> None:
    await house.add_dag(
        "t",
        """
        source = Asset("x-source")
        with DAG("t", schedule=source, params={"table": "orders"}):
            @task
            def text():
                return "{{ not_a_template }}"

            @task(templated=["sql"])
            def query(sql, other, plain, params):
                print(repr(sql), repr(other), repr(plain), params)

            query(
                ["SELECT * FROM {{ params.table }} WHERE day = '{{ ds }}' AND id = "
                 "{{ triggering_asset_events['x-source'][-1].extra.id }} -- {{ run_id }}", text()],
                text(),
                "{{ ds }}",
            )
        """,
    )
    (pk,) = await house.queue("t", state="failed", logical_date=datetime(2026, 1, 2, tzinfo=UTC))
    await house.trigger_with(pk, "t", "x-source", [{"id": 1}, {"id": 8}])
    await house.change_run(pk, state="queued")
    async with house.executor():
        (run,) = await house.ended(pk)
    assert run.error is None
    sql = f"SELECT * FROM orders WHERE day = '2026-01-02' AND id = 8 -- {run.run_id}"
    raw = "{{ not_a_template }}"
    assert f"""["{sql}", {raw!r}] {raw!r} '{{{{ ds }}}}'""" in house.log(run)


async def test_a_template_that_cannot_be_rendered_fails_its_task(house: House) -> None:
    await house.add_dag(
        "t",
        r"""
        with DAG("t"):
            @task(templated="sql")
            def query(sql):
                print("never")

            query("SELECT 1\nWHERE day = '{{ ds }}'")
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("t"))
    assert run.state == "failed"
    assert run.error is not None
    assert "argument 'sql' of task 'query' of DAG 't', line 2: 'ds' is undefined" in run.error
    assert "never" not in house.log(run)


async def test_a_skipped_task_updates_no_asset_and_skips_what_waits_for_it(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag(
        "s",
        """
        from triggerer import SkipTask
        out, other = Asset("x-out"), Asset("x-other")
        with DAG("s"):
            @task(outlets=out, retries=3)
            def skips():
                raise SkipTask("nothing new")

            @task(outlets=other)
            def goes_on(): ...

            @task
            def after(value): ...

            @task
            def after_both(a, b): ...

            first = skips()
            after_both(after(first), goes_on())
        """,
    )
    async with house.executor():
        (pk,) = await house.queue("s")
        (run,) = await house.ended(pk)
    assert (run.state, run.error) == ("success", None)
    tasks = await house.tasks(pk)
    assert {name: (row.state, row.error, row.try_number) for name, row in tasks.items()} == {
        "skips": ("skipped", "nothing new", 1),
        "after": ("skipped", "upstream was skipped: skips", 0),
        "goes_on": ("success", None, 1),
        "after_both": ("skipped", "upstream was skipped: after", 0),
    }
    assert await house.events("x-out") == []
    assert len(await house.events("x-other")) == 1


async def test_a_failure_upstream_counts_for_more_than_a_skip(house: House) -> None:
    await house.add_dag(
        "s",
        """
        from triggerer import SkipTask
        with DAG("s"):
            @task
            def skips():
                raise SkipTask
            @task
            def fails():
                raise ValueError
            @task
            def after(): ...
            [skips(), fails()] >> after()
        """,
    )
    async with house.executor():
        (pk,) = await house.queue("s")
        (run,) = await house.ended(pk)
    tasks = await house.tasks(pk)
    assert run.state == "failed"
    assert (tasks["skips"].state, tasks["skips"].error) == ("skipped", None)
    assert tasks["after"].state == "upstream_failed"


async def test_an_asset_function_reads_the_events_of_the_assets_that_it_names(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag(
        "made",
        """
        from triggerer import asset

        @asset(schedule=None, uri="x-upstream://it")
        def upstream(outlet_events, self):
            outlet_events[self].extra = {"rows": 5}

        @asset(schedule=upstream, uri="x-made://it")
        def made(self, context, upstream, inlet_events):
            last = context["inlet_events"][upstream][-1]
            context["outlet_events"][self].extra = {"rows": last.extra["rows"] + 1}
            print(upstream, len(inlet_events))
        """,
    )
    await house.add_dag("upstream", "from made_file import upstream")
    async with house.executor():
        # Both DAGs are in the same file.
        await house.point_at("upstream", "made_file.py")
        (first,) = await house.ended(*await house.queue("upstream"))
        (second,) = await house.ended(*await house.queue("made"))
    assert (first.error, second.error) == (None, None)
    (event,) = await house.events("x-made://it")
    assert event.extra == {"rows": 6}
    assert event.source_task_id == "made"


async def test_an_asset_function_that_names_no_asset_fails_and_says_so(house: House) -> None:
    await house.add_dag(
        "made",
        """
        from triggerer import asset

        @asset(schedule=None)
        def made(nobody): ...
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("made"))
    assert run.error is not None
    assert "there is no asset named 'nobody'" in run.error
