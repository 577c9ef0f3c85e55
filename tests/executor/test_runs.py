"""A queued run is executed in a worker process, and its results and log are kept."""

import gc
import os
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from tests.executor.conftest import House
from triggerer.domain.outputs import output_token
from triggerer.domain.run_logs import log_path
from triggerer.domain.text.one_line import one_line
from triggerer.executor.slots.run_execution import RunExecution
from triggerer.executor.slots.worker_process import RunHandle
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.schema.models import DagRun
from triggerer.worker.logs.hosts import is_log_of


async def test_a_queued_run_is_executed_and_its_states_and_log_are_kept(any_house: House) -> None:
    house = any_house
    await house.add_dag(
        "one",
        """
        with DAG("one", params={"a": 1, "b": 2}):
            @task
            def first(params):
                print("hello from the task")
                return {"n": 20, **params}

            @task
            def second(value, log):
                log.info("got %s", value)
                print("to stderr", file=sys.stderr)

            second(first())
        """,
    )
    async with house.executor():
        (pk,) = await house.queue("one", params={"b": 3})
        (run,) = await house.ended(pk)
    assert (run.state, run.error, run.executor, run.attempt) == ("success", None, "one", 1)
    assert run.started_at is not None
    assert run.ended_at is not None
    assert run.queued_at <= run.started_at <= run.ended_at
    tasks = await house.tasks(pk)
    assert {name: row.state for name, row in tasks.items()} == {
        "first": "success",
        "second": "success",
    }
    log = house.log(run)
    assert "hello from the task" in log
    assert "got {'n': 20, 'a': 1, 'b': 3}" in log
    assert "to stderr" in log


async def test_an_executor_records_its_host_in_the_folder_of_the_logs(house: House) -> None:
    async with house.executor("another:17391:7e812030"):
        assert is_log_of(log_path(str(house.home), "d", "r"), "another:1:earlier")
        assert not is_log_of(log_path(str(house.home), "d", "r"), "third:1:elsewhere")


async def test_a_task_without_spark_has_its_outputs_token_and_learns_that_its_attempt_is_former(
    house: House,
) -> None:
    """Another executor takes the run while the second task is executed, as after a lost lease."""
    await house.add_dag(
        "one",
        """
        with DAG("one"):
            @task(outlets=[Asset("x-out")])
            def first(output, outlet_events):
                outlet_events["x-out"].extra = {"token": output.token, "may": output._may_commit()}

            @task(templated=["text"])
            def second(done, text, output, log):
                log.info("rendered %s", text)
                while output._may_commit():
                    time.sleep(0.05)
                log.info("no longer")

            second(first(), "{{ output.token }}")
        """,
    )
    async with house.executor():
        (pk,) = await house.queue("one")
        run = await house.until(pk, lambda run: run.log_home is not None)
        token = output_token("one", run.run_id, "second", 0)
        await _until_said(house, run, f"rendered {token}")
        await house.change_run(pk, epoch=1_000_000)
        await _until_said(house, run, "no longer")
    (event,) = await house.events("x-out")
    assert event.extra == {"token": output_token("one", run.run_id, "first", 0), "may": True}


async def _until_said(house: House, run: DagRun, text: str) -> None:
    path = house.log_path(run)
    with anyio.fail_after(60):
        while not path.exists() or text not in path.read_text():  # noqa: ASYNC110 - a file tells nobody
            await anyio.sleep(0.05)


async def test_the_log_of_the_service_says_that_a_run_failed_and_why(house: House) -> None:
    await house.add_dag(
        "fails",
        """
        with DAG("fails"):
            @task
            def fail():
                raise ValueError("no such column: amount")

            fail()
        """,
    )
    with capture_logs() as logs:
        async with house.executor():
            (pk,) = await house.queue("fails")
            (run,) = await house.ended(pk)
    (said,) = [log for log in logs if log["event"] == "run failed"]
    assert (said["dag_id"], said["run_id"], said["log_level"]) == ("fails", run.run_id, "warning")
    assert said["error"] == "task fail failed: ValueError: no such column: amount"


async def test_a_task_prints_what_the_locale_has_no_characters_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.add_dag(
        "prints",
        """
        with DAG("prints"):
            @task
            def tick(log):
                print("printed", chr(0x2713), chr(0xDCFF))
                log.info("logged %s", chr(0x2713))
            tick()
        """,
    )
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    async with house.executor():
        (pk,) = await house.queue("prints")
        (run,) = await house.ended(pk)
    assert (run.state, run.error) == ("success", None)
    log = house.log(run)
    assert "printed ✓ \\udcff" in log
    assert "logged ✓" in log


async def test_a_run_needs_no_working_directory(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.add_dag(
        "prints",
        """
        with DAG("prints"):
            @task
            def show():
                print("in", os.getcwd())
            show()
        """,
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with house.executor():
        (pk,) = await house.queue("prints")
        (run,) = await house.ended(pk)
    assert (run.state, run.error) == ("success", None)
    assert "in /\n" in house.log(run)


async def test_a_log_is_for_its_user_alone(house: House) -> None:
    await house.add_dag(
        "quiet",
        """
        with DAG("quiet"):
            @task
            def quiet():
                pass
            quiet()
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("quiet"))
    log = house.log_path(run)
    # <home>/logs/<dag_id>/<run_id>.log: no part of the path existed before.
    modes = [one.stat().st_mode & 0o777 for one in (log, *log.parents[:3])]
    assert modes == [0o600, 0o700, 0o700, 0o700]
    assert log.parents[2] == house.home.resolve()


async def test_a_program_of_a_task_can_read_the_token_and_nothing_is_left_of_it_if_the_run_is_killed(
    house: House, tmp_path: Path
) -> None:
    await house.add_dag(
        "one",
        """
        import subprocess

        with DAG("one", params={"out": ""}):
            @task
            def t(params):
                path = os.environ["TRIGGERER_RUN_TOKEN_FILE"]
                token = subprocess.check_output(["cat", path], text=True)
                Path(params["out"]).write_text(f"{path} {token}")
                os.kill(os.getpid(), signal.SIGKILL)
            t()
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("one", params={"out": str(tmp_path / "out")}))
    assert (run.state, run.exit_code) == ("failed", -9)
    path, token = (tmp_path / "out").read_text().split()
    assert token
    assert not Path(path).exists()


async def test_a_failed_task_fails_its_run_and_what_waits_for_it(house: House) -> None:
    await house.add_dag(
        "fails",
        """
        with DAG("fails"):
            def helper():
                raise ValueError("no such \\x00 thing")

            @task
            def broken():
                helper()

            @task
            def after(value):
                pass

            @task
            def apart():
                pass

            after(broken())
            apart()
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("fails"))
    assert run.state == "failed"
    assert run.error is not None
    assert run.error.startswith("task broken failed: Traceback")
    assert run.error.endswith("ValueError: no such \\x00 thing")
    # `runs list` shows this text.
    assert one_line(run.error) == "task broken failed: ValueError: no such \\x00 thing"
    assert "in helper" in run.error
    assert "/triggerer/" not in run.error
    assert "/triggerer/worker/tasks.py" in house.log(run)
    tasks = await house.tasks(run.id)
    assert {name: row.state for name, row in tasks.items()} == {
        "broken": "failed",
        "after": "upstream_failed",
        "apart": "success",
    }


async def test_a_task_is_tried_again_as_often_as_it_says(house: House) -> None:
    marker = house.folder / "tries"
    await house.add_dag(
        "again",
        f"""
        asset = Asset("x-again")
        with DAG("again"):
            @task(retries=2, retry_delay=0.01, outlets=asset)
            def flaky(outlet_events):
                with open({str(marker)!r}, "a") as file:
                    file.write("x")
                tries = len(Path({str(marker)!r}).read_text())
                outlet_events[asset].extra[f"try {{tries}}"] = True
                if tries < 3:
                    raise RuntimeError("not yet")
            flaky()
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("again"))
    assert run.state == "success"
    assert (await house.tasks(run.id))["flaky"].try_number == 3
    # The failed tries left no events.
    assert [event.extra for event in await house.events("x-again")] == [{"try 3": True}]


async def test_a_task_that_exceeds_its_timeout_fails_and_its_worker_goes_on(house: House) -> None:
    await house.add_dag(
        "slow",
        """
        with DAG("slow"):
            @task(timeout=timedelta(seconds=0.2))
            def waits():
                try:
                    time.sleep(60)
                except Exception:
                    pass
            waits()
        """,
    )
    async with house.executor(workers=1) as executor:
        (first,) = await house.ended(*await house.queue("slow"))
        pids = executor.worker_pids
        (second,) = await house.ended(*await house.queue("slow"))
        assert executor.worker_pids == pids
    for run in (first, second):
        assert run.state == "failed"
        assert "did not end within 0:00:00.200000" in (run.error or "")


async def test_a_task_that_ignores_its_timeout_is_killed_with_its_worker(house: House) -> None:
    await house.add_dag(
        "stuck",
        """
        with DAG("stuck"):
            @task(timeout=timedelta(seconds=0.6))
            def stuck():
                while True:
                    try:
                        time.sleep(60)
                    except BaseException:
                        pass
            stuck()
        """,
    )
    async with house.executor(timeout_grace=timedelta(seconds=0.2)):
        (run,) = await house.ended(*await house.queue("stuck"))
    assert run.state == "failed"
    assert (run.error or "").startswith("task stuck did not stop within 0.2 s after its timeout")
    said = house.said_of_the_end(run)
    assert said == f"INFO triggerer.run: run {run.run_id}: failed: {run.error}"
    assert (await house.tasks(run.id))["stuck"].state == "failed"


async def test_the_wait_between_two_tries_is_not_held_against_the_timeout(house: House) -> None:
    await house.add_dag(
        "patient",
        """
        with DAG("patient"):
            @task(retries=1, retry_delay=1.5, timeout=timedelta(seconds=0.3))
            def flaky(params):
                marker = Path(params["marker"])
                if not marker.exists():
                    marker.touch()
                    raise ValueError("not yet")
            flaky()
        """,
    )
    params = {"marker": str(house.folder / "marker")}
    async with house.executor(timeout_grace=timedelta(seconds=0.3)):
        (run,) = await house.ended(*await house.queue("patient", params=params))
    assert (run.state, run.error) == ("success", None)
    assert (await house.tasks(run.id))["flaky"].try_number == 2


async def test_the_runs_error_has_the_failure_of_a_file_or_a_task(house: House) -> None:
    await house.add_dag("syntax", "def (:")
    await house.add_dag("elsewhere", "with DAG('other'): pass")
    await house.add_dag(
        "exits",
        """
        with DAG("exits"):
            @task
            def leaves():
                sys.exit(3)
            leaves()
        """,
    )
    async with house.executor(workers=1):
        pks = [(await house.queue(dag))[0] for dag in ("syntax", "elsewhere", "exits")]
        runs = await house.ended(*pks)
    assert [run.state for run in runs] == ["failed"] * 3
    assert "syntax error" in (runs[0].error or "")
    assert runs[1].error == "elsewhere_file.py does not define the DAG elsewhere any more"
    assert runs[2].error == "task leaves failed: the task called sys.exit(3)"


async def test_each_run_loads_its_file_afresh(house: House) -> None:
    source = """
        with DAG("fresh"):
            @task
            def says():
                print("version {}")
            says()
        """
    await house.add_dag("fresh", source.format(1))
    async with house.executor(workers=1):
        (first,) = await house.ended(*await house.queue("fresh"))
        path = house.dags_folder / "fresh_file.py"
        path.write_text(path.read_text().replace("version 1", "version two"))
        (second,) = await house.ended(*await house.queue("fresh"))
    assert "version 1" in house.log(first)
    assert "version two" in house.log(second)


async def test_no_more_runs_than_workers_at_a_time_and_all_of_them_in_the_end(
    house: House,
) -> None:
    await house.add_dag(
        "many",
        """
        with DAG("many"):
            @task
            def touch(dag_run):
                time.sleep(0.01)
            touch()
        """,
    )
    async with house.executor(workers=2) as executor:
        pks = await house.queue("many", 60)
        runs = await house.ended(*pks)
        assert len(executor.worker_pids) == 2
    assert {run.state for run in runs} == {"success"}
    assert {run.attempt for run in runs} == {1}
    spans = [(house.log_path(run), run.started_at) for run in runs]
    assert len({path for path, _ in spans}) == 60


async def test_a_queued_run_that_nobody_announced_is_found_by_the_sweep(house: House) -> None:
    await house.add_dag(
        "quiet",
        """
        with DAG("quiet"):
            @task
            def t():
                pass
            t()
        """,
    )
    async with house.executor(sweep_every=timedelta(seconds=1)):
        (pk,) = await house.queue("quiet", state="failed")
        # No wake-up announces this change.
        await house.change_run(pk, state="queued")
        run = await house.until(pk, lambda run: run.state == "success")
    assert run.attempt == 1


async def test_a_run_that_nobody_said_is_to_be_cancelled_is_cancelled_by_the_sweep(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag(
        "waits",
        """
        with DAG("waits"):
            @task
            def t():
                time.sleep(60)
            t()
        """,
    )
    await house.add_instance("one")
    async with house.executor("one", sweep_every=timedelta(seconds=0.5)) as executor:
        (pk,) = await house.queue("waits")
        await house.until(pk, lambda run: bool(executor.worker_pids))
        await house.change_run(pk, cancel_requested=True)
        (run,) = await house.ended(pk, timeout=20)
    assert (run.state, run.error) == ("cancelled", "cancelled")


async def test_the_sweep_cancels_runs_that_a_dead_executor_had_to_cancel(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag("waits", "DAG('waits')")
    await house.add_instance("dead", alive=False)
    (pk,) = await house.queue(
        "waits", state="running", executor="dead", attempt=1, cancel_requested=True
    )
    with house.database.wakeups.subscribe(Signal.RUNS_ENDED) as ends:
        async with house.executor("one"):
            (run,) = await house.ended(pk, timeout=20)
            assert (run.state, run.attempt) == ("cancelled", 1)
            # The scheduler learns from this wake-up that there is room for another run.
            with anyio.fail_after(10):
                assert await ends.wait() == {Signal.RUNS_ENDED: {"waits"}}


async def test_changes_of_a_run_to_its_process_do_not_reach_the_next_run(house: House) -> None:
    await house.add_dag(
        "rude",
        """
        import logging, logging.config, threading

        def later(events):
            time.sleep(0.5)
            len(events)

        with DAG("rude"):
            @task
            def rude(triggering_asset_events):
                threading.Thread(target=later, args=[triggering_asset_events], daemon=True).start()
                os.chdir("/")
                logging.config.dictConfig({"version": 1, "root": {"handlers": [], "level": "ERROR"}})
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                sys.stderr = None
                sys.stdout.close()
            rude()
        """,
    )
    await house.add_dag(
        "polite",
        """
        with DAG("polite"):
            @task
            def polite(log):
                time.sleep(1)
                print("printed in", os.getcwd())
                log.info("logged")
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
            polite()
        """,
    )
    async with house.executor(workers=1) as executor:
        (first,) = await house.ended(*await house.queue("rude"))
        pids = executor.worker_pids
        (second,) = await house.ended(*await house.queue("polite"))
        assert executor.worker_pids == pids
    assert (first.state, second.state, second.error) == ("success", "success", None)
    log = house.log(second)
    assert f"printed in {Path.cwd()}" in log
    assert "logged" in log


async def test_a_line_that_a_task_does_not_end_is_in_the_log_with_the_end_of_the_run(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    await house.add_dag(
        "prints",
        """
        with DAG("prints"):
            @task
            def prints():
                # The run's process removes a file between its last report and its end, which takes long here.
                Path.unlink = lambda *args, **kwargs: time.sleep(1)
                print("half a line", end="")
            prints()
        """,
    )
    async with house.executor(workers=1):
        (run,) = await house.ended(*await house.queue("prints"))
        assert "half a line" in house.log(run)


async def test_a_log_that_cannot_be_written_fails_the_run_with_the_reason(house: House) -> None:
    await house.add_dag("blocked", "with DAG('blocked'): pass")
    (house.home / "logs").mkdir(parents=True)
    (house.home / "logs" / "blocked").write_text("a file where a folder has to be")
    async with house.executor(workers=1):
        (run,) = await house.ended(*await house.queue("blocked"))
    assert run.state == "failed"
    assert "cannot be written" in (run.error or "")


async def test_a_worker_lets_the_service_go_first(house: House) -> None:
    await house.add_dag(
        "nice",
        """
        with DAG("nice"):
            @task
            def shows():
                print("niceness", os.nice(0))
                session = Path("/proc/self/autogroup")
                if session.exists():
                    print("session:", session.read_text())
            shows()
        """,
    )
    async with house.executor(workers=2):
        (run,) = await house.ended(*await house.queue("nice"))
    log = house.log(run)
    assert f"niceness {os.nice(0) + 5}" in log
    # If the kernel divides processors among sessions, a process's niceness affects only its own session.
    assert ("session:" in log) == Path("/proc/self/autogroup").exists()
    assert all(line.endswith(" nice 5") for line in log.splitlines() if "session:" in line)


async def test_what_the_executor_keeps_for_a_run_is_freed_at_its_end(house: House) -> None:
    """Reference counting alone must free the objects. A garbage collection over thousands of runs would block the
    event loop."""
    await house.add_dag(
        "short",
        """
        with DAG("short", max_active_runs=100):
            @task
            def nothing():
                pass
            nothing()
        """,
    )
    async with house.executor(workers=1):
        gc.collect()
        gc.disable()
        try:
            await house.ended(*[pk for _ in range(5) for pk in await house.queue("short")])
            left = [one for one in gc.get_objects() if isinstance(one, RunExecution | RunHandle)]
        finally:
            gc.enable()
    # The last run's execution, its process, and the process that waits for the next run.
    assert len(left) <= 3, left


async def test_the_client_of_a_broker_is_imported_once_for_all_runs_of_a_worker(
    house: House,
) -> None:
    """The import takes longer than the rest of a short run."""
    await house.add_dag(
        "watches",
        """
        has_client = "aiokafka" in sys.modules
        from watchers.kafka import KafkaEventTrigger

        with DAG("watches"):
            @task
            def says():
                print(f"had the client: {has_client}")

            says()
        """,
    )
    async with house.executor(workers=1):
        runs = [(await house.ended(*await house.queue("watches")))[0] for _ in range(3)]
    assert "had the client: False" in house.log(runs[0])
    # The second run's process may have been forked before the worker imported the client. So look at the third run.
    assert "had the client: True" in house.log(runs[2])
