"""A queued run is executed in a worker process, and all that it leaves is kept."""

from tests.execution.conftest import House


async def test_a_queued_run_is_executed_and_its_states_and_log_are_kept(any_house: House) -> None:
    house = any_house
    await house.add_dag(
        "one",
        """
        with DAG("one"):
            @task
            def first():
                print("hello from the task")
                return {"n": 20}

            @task
            def second(value, log):
                log.info("got %s", value["n"] + 1)
                print("to stderr", file=sys.stderr)

            second(first())
        """,
    )
    async with house.executor():
        (pk,) = await house.queue("one")
        (run,) = await house.ended(pk)
    assert (run.state, run.error, run.executor, run.attempt) == ("success", None, "one", 1)
    assert run.queued_at <= run.started_at <= run.ended_at
    tasks = await house.tasks(pk)
    assert {name: task.state for name, task in tasks.items()} == {
        "first": "success",
        "second": "success",
    }
    log = house.log(run)
    assert "hello from the task" in log
    assert "got 21" in log
    assert "to stderr" in log
