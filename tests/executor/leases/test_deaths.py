"""Workers and executors die. No run is lost, and no run is executed by two executors at once."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import anyio
import psutil
import pytest
from anyio.lowlevel import checkpoint
from sqlalchemy import text

from tests.executor.conftest import House
from tests.isolation.conftest import until
from tests.services.process import is_alive
from triggerer.domain.attempts import RunOrder
from triggerer.domain.run_logs import log_path
from triggerer.executor import Executor, ExecutorSettings
from triggerer.executor.claimed_queue import PrefetchLimit
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.slots import slot
from triggerer.executor.slots.worker_process import RunHandle, WorkerProcess, open_worker
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.runs.orphans import MAX_ATTEMPTS

SLEEPS = """
    with DAG("sleeps"):
        @task(outlets=[Asset("x-sleeps")])
        def sleeps(params):
            print("about to sleep", flush=True)
            if params.get("long", True):
                import subprocess
                with subprocess.Popen(["sleep", "300"]) as child:
                    Path(params["marker"]).touch()
                    child.wait()
        sleeps()
    """


_QUEUED_AGAIN = text("UPDATE dag_run SET state = 'queued', attempt = 1")


async def _started(house: House, pk: int, marker: Path) -> None:
    with anyio.fail_after(20):
        while True:
            if marker.exists():
                return
            await anyio.sleep(0.02)


async def _stop(pid: int) -> None:
    """Send SIGSTOP, and wait until the process has stopped. Until then, it could still receive a run."""
    os.kill(pid, signal.SIGSTOP)
    with anyio.fail_after(10):
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110
            await anyio.sleep(0.01)


def _descendants(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _process_of_the_run(executor: Executor) -> psutil.Process:
    """Return the process of the only run. It is the only worker's child that has children itself."""
    (found,) = (one for one in psutil.Process(executor.worker_pids[0]).children() if one.children())
    return found


async def _waiting_process(executor: Executor) -> psutil.Process:
    """Return the only process of the only worker, which waits for an order."""
    (pid,) = executor.worker_pids
    with anyio.fail_after(10):
        while True:
            children = psutil.Process(pid).children()
            if len(children) == 1:
                return children[0]
            await anyio.sleep(0.01)


async def _stop_waiting_process(executor: Executor) -> psutil.Process:
    """Stop the process that waits for a run. If the process ends before it is stopped, look for the next one."""
    while True:
        waiting = await _waiting_process(executor)
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            await _stop(waiting.pid)
            return waiting


async def _all_gone(processes: list[psutil.Process]) -> None:
    with anyio.fail_after(10):
        while True:
            if not any(is_alive(process) for process in processes):
                return
            await anyio.sleep(0.05)


async def test_a_worker_that_is_killed_fails_its_run_with_the_reason(house: House) -> None:
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    async with house.executor(workers=1) as executor:
        (pk,) = await house.queue("sleeps", params={"marker": str(marker)})
        await _started(house, pk, marker)
        (pid,) = executor.worker_pids
        family = _descendants(pid)
        os.kill(pid, signal.SIGKILL)
        (run,) = await house.ended(pk)
        assert (run.state, run.exit_code) == ("failed", -9)
        assert (run.error or "").startswith("the worker was killed by SIGKILL in the middle")
        assert "about to sleep" in (run.error or "")
        reason = (run.error or "").partition("; its last output:\n")[0]
        assert (
            house.said_of_the_end(run) == f"INFO triggerer.run: run {run.run_id}: failed: {reason}"
        )
        await _all_gone(family)
        # A new worker takes its place.
        params = {"marker": str(marker), "long": False}
        (next_run,) = await house.ended(*await house.queue("sleeps", params=params))
        assert next_run.state == "success"
        assert executor.worker_pids != [pid]


async def test_a_killed_process_fails_its_run_with_the_reason_and_its_worker_lives_on(
    house: House,
) -> None:
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    async with house.executor(workers=1) as executor:
        (pk,) = await house.queue("sleeps", params={"marker": str(marker)})
        await _started(house, pk, marker)
        pids = executor.worker_pids
        _process_of_the_run(executor).kill()
        (run,) = await house.ended(pk)
        assert executor.worker_pids == pids
    assert (run.state, run.exit_code) == ("failed", -9)
    assert (run.error or "").startswith(
        "the run's process was killed by SIGKILL in the middle of the run, as happens when memory runs out;"
    )


@pytest.mark.parametrize("attempt", [0, 1])
async def test_a_process_that_dies_between_two_runs_fails_neither(
    house: House, attempt: int
) -> None:
    """The process dies after the second order was sent, and before the process accepts it."""
    await house.add_dag("sleeps", SLEEPS)
    async with house.executor(workers=1) as executor:
        (first,) = await house.ended(*await house.queue("sleeps", params={"long": False}))
        pids = executor.worker_pids
        waiting = await _stop_waiting_process(executor)
        (pk,) = await house.queue("sleeps", params={"long": False}, attempt=attempt)
        await house.until(pk, lambda run: run.started_at is not None)
        await anyio.wait_all_tasks_blocked()
        waiting.kill()
        (second,) = await house.ended(pk)
        assert executor.worker_pids == pids
    assert (first.state, first.error) == ("success", None)
    assert (second.state, second.error, second.attempt) == ("success", None, attempt + 1)


async def test_a_run_that_is_cancelled_as_its_process_dies_unbegun_is_cancelled(
    house: House,
) -> None:
    await house.add_dag("sleeps", SLEEPS)
    async with house.executor(workers=1, cancel_grace=timedelta(seconds=0.2)) as executor:
        await house.ended(*await house.queue("sleeps", params={"long": False}))
        (await _waiting_process(executor)).suspend()
        (pk,) = await house.queue("sleeps", params={})
        await house.until(pk, lambda run: run.started_at is not None)
        await house.cancel(pk)
        # A stopped process does not react to SIGTERM, so it is killed after the grace.
        (run,) = await house.ended(pk)
    assert (run.state, run.error) == ("cancelled", "cancelled")


async def test_a_process_that_dies_while_it_reads_the_file_fails_its_run(house: House) -> None:
    """The process has accepted the order, so the file may be the cause."""
    await house.add_dag("sleeps", SLEEPS)
    await house.add_dag("exits", "os._exit(7)")
    async with house.executor(workers=1):
        await house.ended(*await house.queue("sleeps", params={"long": False}))
        (run,) = await house.ended(*await house.queue("exits"))
    assert (run.state, run.exit_code) == ("failed", 7)


async def test_a_worker_that_cannot_start_fails_its_run(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not repeated: other executors could not start a worker either, so the repeats would never end."""
    await house.add_dag("sleeps", SLEEPS)
    (house.folder / "sitecustomize.py").write_text("import os; os._exit(9)")
    monkeypatch.setenv("PYTHONPATH", str(house.folder))
    async with house.executor(workers=1):
        (run,) = await house.ended(*await house.queue("sleeps", params={"long": False}))
    assert (run.state, run.exit_code) == ("failed", 9)
    assert (run.error or "").startswith("the worker exited with code 9 before it took the run")


async def test_a_worker_is_killed_by_a_number_that_is_still_its_own(
    worker_setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a worker is reaped, its pid may belong to another process. So the worker's group must be killed first."""
    killed: list[int] = []
    killpg = os.killpg

    def kill(group: int, number: int) -> None:
        # Raises if the worker was reaped: then its number could belong to another process.
        os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        killed.append(number)
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", kill)
    async with open_worker(worker_setup) as worker:
        await worker.take()
        os.kill(worker.pid, signal.SIGKILL)
        with anyio.fail_after(10):
            await worker.gone.wait()
        # The rest of the worker's group was killed.
        assert killed == [signal.SIGKILL]
        assert await worker.reap() == -signal.SIGKILL
        worker.terminate()
    assert killed == [signal.SIGKILL]


async def test_a_worker_that_has_ended_unnoticed_is_still_there_to_be_signalled(
    worker_setup: dict[str, Any],
) -> None:
    async with open_worker(worker_setup) as worker:
        await worker.take()
        # Block the event loop, so that nothing notices the end of the worker and reaps it.
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        worker.terminate()
        worker.kill()
        assert await worker.reap() == -signal.SIGKILL


async def test_a_process_that_dies_before_it_is_given_back_leaves_no_descriptor_open(
    worker_setup: dict[str, Any],
) -> None:
    async with open_worker(worker_setup) as worker:
        first = await worker.take()
        before = psutil.Process().num_fds()
        os.kill(first.pid, signal.SIGKILL)
        with anyio.fail_after(20):
            second = await worker.take()
            await first.ended.wait()
            worker.give_back(first)
            # The second process has as many descriptors as the first one had.
            while psutil.Process().num_fds() > before:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        worker.give_back(second)
        assert await worker.take() is second


async def test_a_process_that_exits_fails_its_run_with_the_exit_code(house: House) -> None:
    await house.add_dag(
        "exits",
        """
        with DAG("exits"):
            @task
            def leaves():
                os._exit(7)
            leaves()
        """,
    )
    async with house.executor():
        (run,) = await house.ended(*await house.queue("exits"))
    assert (run.state, run.exit_code) == ("failed", 7)
    assert (run.error or "").startswith(
        "the run's process exited with code 7 in the middle of the run"
    )


async def test_cancelling_ends_a_running_run_and_all_that_it_started(any_house: House) -> None:
    house = any_house
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    async with house.executor(workers=1) as executor:
        first, queued = await house.queue("sleeps", 2, params={"marker": str(marker)})
        await _started(house, first, marker)
        family = _descendants(_process_of_the_run(executor).pid)
        assert len(family) == 2
        pids = executor.worker_pids
        await house.cancel(queued)
        assert (await house.run(queued)).state == "cancelled"
        await house.cancel(first)
        (run,) = await house.ended(first)
        await _all_gone(family)
        assert executor.worker_pids == pids
    assert (run.state, run.error) == ("cancelled", "cancelled")
    assert house.said_of_the_end(run) == f"INFO triggerer.run: run {run.run_id}: cancelled"
    assert (run.ended_at or run.queued_at) > run.queued_at
    assert await house.events("x-sleeps") == []


async def test_a_run_that_is_cancelled_before_a_worker_has_it_has_a_log_that_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keep claimed runs for a minute, because the worker may take long to start.
    monkeypatch.setattr("triggerer.executor.claimed_queue.STALE_SECONDS", 60)
    # The executor claims several runs at once, as if they were short.
    monkeypatch.setattr(PrefetchLimit, "runs", 64)
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    async with house.executor(workers=1):
        first, second = await house.queue("sleeps", 2, params={"marker": str(marker)})
        await _started(house, first, marker)
        assert (await house.run(second)).state == "running"
        await house.cancel(second)
        (run,) = await house.ended(second)
    assert run.state == "cancelled"
    assert house.said_of_the_end(run) == f"INFO triggerer.run: run {run.run_id}: cancelled"


async def test_a_cancelled_task_that_does_not_listen_is_killed_after_the_grace(
    house: House,
) -> None:
    await house.add_dag(
        "deaf",
        """
        with DAG("deaf"):
            @task
            def deaf(params):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                print("in the middle of a line", end="", flush=True)
                Path(params["marker"]).touch()
                time.sleep(300)
            deaf()
        """,
    )
    marker = house.folder / "marker"
    async with house.executor(cancel_grace=timedelta(seconds=0.2)):
        (pk,) = await house.queue("deaf", params={"marker": str(marker)})
        await _started(house, pk, marker)
        await house.cancel(pk)
        (run,) = await house.ended(pk)
    assert (run.state, run.exit_code) == ("cancelled", -9)
    assert house.log(run).splitlines()[-2] == "in the middle of a line"
    assert house.said_of_the_end(run) == f"INFO triggerer.run: run {run.run_id}: cancelled"


async def test_shutting_down_puts_running_runs_back_and_leaves_no_process(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    async with house.executor(workers=1) as executor:
        pks = await house.queue("sleeps", 2, params={"marker": str(marker)})
        await _started(house, pks[0], marker)
        family = _descendants(executor.worker_pids[0])
    await _all_gone(family)
    runs = [await house.run(pk) for pk in pks]
    assert [(run.state, run.attempt) for run in runs] == [("queued", 0), ("queued", 0)]
    interrupted = "interrupted: the service stopped, and the run is queued again"
    said = house.said_of_the_end(runs[0])
    assert said == f"INFO triggerer.run: run {runs[0].run_id}: {interrupted}"
    # No worker had begun the second run, so it was not interrupted and has no log.
    home = runs[0].log_home
    assert home is not None
    assert not Path(log_path(home, runs[1].dag_id, runs[1].run_id)).exists()
    for pk in pks:
        await house.change_run(pk, params={"marker": str(marker), "long": False})
    async with house.executor("two"):
        runs = await house.ended(*pks)
    assert [(run.state, run.attempt, run.executor) for run in runs] == [
        ("success", 1, "two"),
        ("success", 1, "two"),
    ]


async def test_clean_restarts_use_up_none_of_a_runs_attempts(any_house: House) -> None:
    house = any_house
    await house.add_dag("sleeps", SLEEPS)
    (pk,) = await house.queue("sleeps", params={})
    for number in range(MAX_ATTEMPTS + 1):
        marker = house.folder / f"marker{number}"
        await house.change_run(pk, params={"marker": str(marker)})
        async with house.executor(f"start{number}"):
            await _started(house, pk, marker)
            assert (await house.run(pk)).attempt == 1
        assert (await house.run(pk)).state == "queued"
    # Now an executor dies while it executes the run. This counts as an attempt, and the run is executed again.
    params = {"marker": str(house.folder / "last"), "long": False}
    lost = {"state": "running", "executor": "dead", "attempt": 1}
    await house.change_run(pk, params=params, **lost)
    await house.add_instance("dead", alive=False)
    async with house.executor("end"):
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 2)


async def test_shutting_down_lets_a_run_end_within_the_grace(house: House) -> None:
    await house.add_dag(
        "short",
        """
        with DAG("short"):
            @task
            def short(params):
                Path(params["marker"]).touch()
                time.sleep(0.5)
            short()
        """,
    )
    marker = house.folder / "marker"
    async with house.executor(shutdown_grace=timedelta(seconds=10)):
        (pk,) = await house.queue("short", params={"marker": str(marker)})
        await _started(house, pk, marker)
    assert (await house.run(pk)).state == "success"


async def test_runs_of_a_dead_executor_are_queued_again_three_times_at_most(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag("sleeps", SLEEPS)
    params = {"marker": str(house.folder / "marker"), "long": False}
    lost = {"state": "running", "executor": "dead", "started_at": datetime.now(UTC)}
    (again,) = await house.queue("sleeps", params=params, attempt=1, **lost)
    (spent,) = await house.queue("sleeps", params=params, attempt=3, **lost)
    await house.add_instance("dead", alive=False)
    await house.add_instance("one")
    async with house.executor("one"):
        first, second = await house.ended(again, spent)
    assert (first.state, first.attempt, first.executor) == ("success", 2, "one")
    assert (second.state, second.attempt) == ("failed", 3)
    assert "given up after 3 attempts" in (second.error or "")


async def test_a_killed_service_leaves_no_worker_behind(house: House) -> None:
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    (pk,) = await house.queue("sleeps", params={"marker": str(marker)})
    service = _service(house)
    try:
        await _started(house, pk, marker)
        family = _descendants(service.pid)
        assert len(family) >= 4
    finally:
        service.kill()
        service.wait()
    await _all_gone(family)
    assert (await house.run(pk)).state == "running"
    await house.change_run(pk, params={"marker": str(marker), "long": False})
    async with house.executor("next"):
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 2)
    assert len(await house.events("x-sleeps")) == 1


_SERVICE = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.executor.conftest import House
from triggerer.executor.slots import slot
from triggerer.store.database.opening import open_database

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(folder, path, dies_with_the_first_worker):
    if dies_with_the_first_worker:
        slot.open_worker = die
    async with open_database(f"sqlite+aiosqlite:///{path}") as database:
        async with House(database, Path(folder)).executor(f"killed {os.getpid()}"):
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def _service(house: House, *, dies_with_the_first_worker: bool = False) -> subprocess.Popen[bytes]:
    """Start a process with an executor. With `dies_with_the_first_worker` the process kills itself instead of starting
    a worker."""
    dies = "yes" if dies_with_the_first_worker else ""
    return subprocess.Popen(
        [sys.executable, "-c", _SERVICE, str(house.folder), str(house.database.path), dies],
        cwd=Path(__file__).parents[3],
    )


async def test_a_run_that_no_worker_has_begun_is_never_given_up(house: House) -> None:
    await house.add_dag("sleeps", SLEEPS)
    (pk,) = await house.queue("sleeps", params={"long": False})
    for _ in range(MAX_ATTEMPTS + 1):
        with _service(house, dies_with_the_first_worker=True) as service:
            assert service.wait(30) == -signal.SIGKILL
        run = await house.run(pk)
        assert run.state == "running"
    assert (run.attempt, run.started_at) == (2, None)
    async with house.executor("lives"):
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("success", 2)
    assert run.started_at is not None


@pytest.mark.parametrize("then", ["there is room", "it is cancelled", "the service stops"])
async def test_a_run_for_which_no_worker_can_be_had_waits_for_one(
    house: House, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    asked = 0

    def refuse(*_: object) -> NoReturn:
        nonlocal asked
        asked += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    # Refuse each worker, as if connections had used up all file descriptors.
    monkeypatch.setattr(slot, "open_worker", refuse)
    await house.add_dag("sleeps", SLEEPS)
    async with house.executor():
        (pk,) = await house.queue("sleeps", params={"long": False})
        await until(lambda: asked > 0)
        if then == "there is room":
            monkeypatch.undo()
        elif then == "it is cancelled":
            await house.cancel(pk)
        if then != "the service stops":
            (run,) = await house.ended(pk)
            assert (run.state, run.attempt) == (
                ("success", 1) if then == "there is room" else ("cancelled", 1)
            )
    if then == "the service stops":
        assert (await house.run(pk)).state == "queued"


async def test_a_run_that_takes_its_service_with_it_is_given_up(house: House) -> None:
    await house.add_dag(
        "kills",
        """
        with DAG("kills"):
            @task
            def kills(params):
                with open(params["log"], "a") as log:
                    log.write("begun\\n")
                import psutil

                worker, service = psutil.Process().parents()[:2]
                service.kill()
            kills()
        """,
    )
    log = house.folder / "log"
    (pk,) = await house.queue("kills", params={"log": str(log)})
    for _ in range(MAX_ATTEMPTS):
        with _service(house) as service:
            assert service.wait(30) == -signal.SIGKILL
    async with house.executor("lives"):
        (run,) = await house.ended(pk)
    assert (run.state, run.attempt) == ("failed", MAX_ATTEMPTS)
    assert log.read_text() == "begun\n" * MAX_ATTEMPTS


async def _never_begins(result_writer: ResultWriter, order: RunOrder) -> bool:
    """Stands for `ResultWriter.begin` while the store is unavailable."""
    await anyio.sleep_forever()
    return False


async def test_a_run_that_waits_to_begin_can_be_cancelled(
    any_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = any_house
    await house.add_dag("sleeps", SLEEPS)
    monkeypatch.setattr(ResultWriter, "begin", _never_begins)
    async with house.executor(workers=1, cancel_grace=timedelta(seconds=60)) as executor:
        (pk,) = await house.queue("sleeps", params={}, attempt=1)
        run = await house.until(
            pk, lambda run: run.state != "queued" and bool(executor.worker_pids)
        )
        assert (run.state, run.attempt, run.started_at) == ("running", 2, None)
        await house.cancel(pk)
        (run,) = await house.ended(pk)
        assert (run.state, run.error, run.started_at) == ("cancelled", "cancelled", None)
        (other,) = await house.ended(*await house.queue("sleeps", params={"long": False}))
    assert other.state == "success"


async def test_a_run_that_waits_to_begin_is_handed_back_by_a_service_that_stops(
    any_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = any_house
    await house.add_dag("sleeps", SLEEPS)
    monkeypatch.setattr(ResultWriter, "begin", _never_begins)
    with anyio.fail_after(20):
        async with house.executor(workers=1) as executor:
            (pk,) = await house.queue("sleeps", params={}, attempt=1)
            await house.until(pk, lambda run: bool(executor.worker_pids))
    run = await house.run(pk)
    assert (run.state, run.attempt, run.started_at) == ("queued", 1, None)


async def test_a_run_that_was_given_away_before_it_began_is_not_executed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    take = WorkerProcess.take

    async def give_away(worker: WorkerProcess) -> RunHandle:
        process = await take(worker)
        if not given:
            # On SQLite, every other executor counts as dead, and its running runs are queued again. Mark this run as
            # ended to prevent that.
            await house.change_run(pk, executor="other", state="success")
            given.append(pk)
        return process

    given: list[int] = []
    monkeypatch.setattr(WorkerProcess, "take", give_away)
    async with house.executor(workers=1):
        (pk,) = await house.queue("sleeps", params={"marker": str(marker)}, attempt=1)
        (run,) = await house.ended(*await house.queue("sleeps", params={"long": False}))
        assert run.state == "success"
    assert not marker.exists()
    run = await house.run(pk)
    assert (run.state, run.executor, run.started_at) == ("success", "other", None)


async def test_a_run_that_comes_back_before_it_began_is_executed_once(
    any_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another executor believes that this executor is dead, and queues the run. This executor then claims the run."""
    house = any_house
    await house.add_dag(
        "notes",
        """
        with DAG("notes"):
            @task
            def notes(params):
                with open(params["log"], "a") as log:
                    log.write("begun\\n")
            notes()
        """,
    )
    log = house.folder / "log"
    take = WorkerProcess.take
    waiting = []

    async def come_back(worker: WorkerProcess) -> RunHandle:
        process = await take(worker)
        waiting.append(worker)
        if len(waiting) > 1:
            return process
        async with house.database.transaction() as session:
            await session.execute(_QUEUED_AGAIN)
            announce(session, Signal.RUNS_QUEUED)
        await house.until(pk, lambda run: run.state == "running")
        return process

    monkeypatch.setattr(WorkerProcess, "take", come_back)
    async with house.executor(workers=2, shutdown_grace=timedelta(seconds=20)):
        (pk,) = await house.queue("notes", params={"log": str(log)}, attempt=1)
        (run,) = await house.ended(pk)
    # The first claim's epoch is too old by now, so its worker does not begin.
    assert (run.state, run.attempt, run.epoch) == ("success", 2, 2)
    assert log.read_text() == "begun\n"


@pytest.mark.rule(
    "15: an executor that has lost a run's lease can submit and write nothing for the run"
)
async def test_a_run_that_was_given_to_somebody_else_is_ended_here_and_writes_nothing(
    any_house: House,
) -> None:
    house = any_house
    await house.add_dag("sleeps", SLEEPS)
    marker = house.folder / "marker"
    await house.add_instance("one")
    await house.add_instance("other")
    async with house.executor("one", sweep_every=timedelta(seconds=1)) as executor:
        (pk,) = await house.queue("sleeps", params={"marker": str(marker)})
        await _started(house, pk, marker)
        family = _descendants(executor.worker_pids[0])
        # SQLite knows only one service, so any other executor counts as dead.
        state = "running" if house.database.dialect == "postgresql" else "success"
        await house.change_run(pk, executor="other", attempt=2, epoch=2, state=state)
        await _all_gone(family)
    run = await house.run(pk)
    assert (run.state, run.executor, run.attempt) == (state, "other", 2)
    assert await house.events("x-sleeps") == []
    # This executor adds nothing to the log, because the other executor may write to it now.
    assert house.log(run).endswith("about to sleep\n")


@pytest.mark.parametrize("turns", range(6))
async def test_an_executor_that_is_cancelled_while_it_starts_ends(house: House, turns: int) -> None:
    executor = Executor(
        house.database,
        house.database.wakeups,
        instance_id="one",
        settings=ExecutorSettings(
            home=house.home, dags_folder=house.dags_folder, shutdown_grace=timedelta(0)
        ),
    )

    async def start_and_cancel() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.run)
            for _ in range(turns):
                await checkpoint()
            tasks.cancel_scope.cancel()

    # A timeout cannot end an executor that hangs in a shielded scope, so start the executor in a separate task.
    starting = asyncio.ensure_future(start_and_cancel())
    await asyncio.wait([starting], timeout=10)
    has_ended = starting.done()
    executor._stopping.set()
    await starting
    assert has_ended
