"""The kernel kills the workers of a suspended executor before other executors may take over the workers' runs.

The tests suspend the executor's process (SIGSTOP), so that it cannot end its workers itself.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Set
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs

from tests.executor.conftest import House, open_house
from tests.executor.spark.test_sessions import is_java
from tests.services.clusters.spark import TrainedHome
from tests.services.process import is_alive
from triggerer.errors import ConfigurationError
from triggerer.executor import Executor
from triggerer.executor.claims import Claims
from triggerer.executor.lease import lease_guard
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.lease.registration import Registration
from triggerer.executor.slots.worker_process import open_worker
from triggerer.processes.own_lease import boottime
from triggerer.store.runs.results import RunClaim
from triggerer.store.schema.models import Instance

EXPIRY = timedelta(seconds=6)

# Each attempt writes its process id to `log`. The first attempt then waits for a child process, which stands for a JVM.
STAYS = """
    import subprocess

    with DAG("stays"):
        @task
        def stays(params):
            log = Path(params["log"])
            is_first = not log.exists()
            child = subprocess.Popen(["sleep", "300"]) if is_first else None
            with log.open("a") as file:
                file.write(f"{os.getpid()}\\n")
            if is_first:
                child.wait()
        stays()
    """
# The first attempt sleeps with the interpreter's lock, so that no other thread of its process runs.
HOLDS_THE_LOCK = """
    import ctypes

    with DAG("holds"):
        @task
        def holds(params):
            log = Path(params["log"])
            is_first = not log.exists()
            with log.open("a") as file:
                file.write(f"{os.getpid()}\\n")
            if is_first:
                ctypes.PyDLL(None).sleep(params["seconds"])
        holds()
    """
ON_SPARK = """
    from pyspark.sql.functions import udf

    def wait(path):
        Path(path).write_text(f"{os.getpid()}\\n")
        time.sleep(300)

    with DAG("on_spark"):
        @task
        def on_spark(spark, params):
            if Path(params["log"]).exists():
                return
            frame = spark.createDataFrame([(params["log"],)], "path string")
            frame.select(udf(wait, "string")("path")).collect()
        on_spark()
    """


@pytest.fixture
async def house(postgres_url: str, tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(postgres_url, tmp_path) as house:
        yield house


@contextmanager
def _service(
    house: House, postgres_url: str, *, expiry: timedelta = EXPIRY
) -> Iterator[psutil.Process]:
    """`triggerer executor` in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRIGGERER")}
    environment |= {
        "TRIGGERER__CORE__HOME": str(house.home),
        "TRIGGERER__CORE__DAGS_FOLDER": str(house.dags_folder),
        "TRIGGERER__DATABASE__URL": postgres_url,
        "TRIGGERER__EXECUTOR__LEASE_DURATION": str(expiry.total_seconds()),
        "TRIGGERER__EXECUTOR__PREWARM": "false",
        "TRIGGERER__CORE__SHUTDOWN_GRACE": "0",
    }
    house.home.mkdir(exist_ok=True)
    with (
        (house.folder / "service.log").open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "triggerer", "executor"],
            cwd=house.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as service,
    ):
        try:
            yield psutil.Process(service.pid)
        finally:
            service.kill()


@asynccontextmanager
async def _registered_executor(house: House) -> AsyncIterator[tuple[Executor, Registration]]:
    async with (
        house.executor("one", workers=1, sweep_every=timedelta(minutes=5)) as executor,
        anyio.create_task_group() as tasks,
    ):
        registration = Registration(house.database, "one", expiry=EXPIRY, holder=executor)
        await registration.renew()
        await tasks.start(registration.keep)
        yield executor, registration
        tasks.cancel_scope.cancel()


async def test_an_executor_starts_also_if_its_first_lease_was_over_before_there_was_a_guard(
    house: House,
) -> None:
    """The machine is suspended before the guard starts."""
    suspended_s = 0.0
    async with (
        house.executor("one", workers=1, sweep_every=timedelta(minutes=5)) as executor,
        anyio.create_task_group() as tasks,
    ):
        registration = Registration(
            house.database,
            "one",
            expiry=EXPIRY,
            holder=executor,
            clock=lambda: boottime() + suspended_s,
        )
        await registration.renew()
        suspended_s = 10 * EXPIRY.total_seconds()
        with anyio.fail_after(60):
            await tasks.start(registration.keep)
        tasks.cancel_scope.cancel()


async def _begun(log: Path, *, within_s: float = 30) -> psutil.Process:
    """Wait until an attempt has written its process id, and return the first such process."""
    with anyio.fail_after(within_s):
        while not (log.exists() and log.read_text().endswith("\n")):  # noqa: ASYNC110
            await anyio.sleep(0.02)
    return psutil.Process(int(log.read_text().split()[0]))


async def _gone(processes: list[psutil.Process], *, within_s: float) -> float:
    """Wait until the processes are gone. Return the last `boottime` at which one of them was alive.

    This instant is not too late, even if this process had to wait for a processor.
    """
    seen_at = 0.0
    with anyio.fail_after(within_s + 30):
        while True:
            asked_at = boottime()
            if not any(is_alive(one) for one in processes):
                return seen_at
            seen_at = asked_at
            await anyio.sleep(0.01)


async def _lease_end(house: House, instance_id: str | None) -> float:
    """Return the end of the lease by the database's clock, as a time of `boottime`.

    The result is too early by the time that the query takes to reach the database, and never too late.
    """
    left = func.extract("epoch", Instance.expires_at - func.clock_timestamp())
    asked_at = boottime()
    async with house.database.reading() as session:
        left_s = await session.scalar(select(left).where(Instance.id == instance_id))
    assert left_s is not None
    return asked_at + float(left_s)


def _guard_of(executor: Executor) -> psutil.Process:
    assert executor.guard is not None
    return psutil.Process(executor.guard.pid)


@pytest.mark.services
@pytest.mark.rule("15: executors and workers too stop by their own clock, before others may begin")
async def test_the_workers_of_a_stopped_executor_are_gone_before_others_may_begin_their_runs(
    house: House, postgres_url: str
) -> None:
    await house.add_dag("stays", STAYS)
    log = house.folder / "log"
    with _service(house, postgres_url) as service:
        (pk,) = await house.queue("stays", params={"log": str(log)})
        worker = await _begun(log)
        (child,) = worker.children()
        run = await house.run(pk)
        await house.add_instance("other")
        service.suspend()
        try:
            lease_end = await _lease_end(house, run.executor)
            async with house.executor("other", sweep_every=timedelta(seconds=0.05)):
                assert await _gone([worker, child], within_s=EXPIRY.total_seconds()) < lease_end
                assert (await house.run(pk)).attempt == 1
                (ended,) = await house.ended(pk)
            assert (ended.state, ended.executor, ended.attempt) == ("success", "other", 2)
        finally:
            service.resume()
        # The executor continues, with another guard.
        (next_pk,) = await house.queue("stays", params={"log": str(log)})
        (ended,) = await house.ended(next_pk)
    assert (ended.state, ended.executor, ended.attempt) == ("success", run.executor, 1)
    said = (house.folder / "service.log").read_text()
    assert "the executor's lease is over" in said
    assert "the executor's lease is held again" in said
    assert "a worker died" not in said
    assert "a run's process died" not in said


@pytest.mark.services
@pytest.mark.rule("15: executors and workers too stop by their own clock, before others may begin")
async def test_a_worker_whose_interpreter_is_held_up_dies_with_the_lease_too(
    house: House, postgres_url: str
) -> None:
    await house.add_dag("holds", HOLDS_THE_LOCK)
    log = house.folder / "log"
    with _service(house, postgres_url) as service:
        (pk,) = await house.queue("holds", params={"log": str(log), "seconds": 300})
        worker = await _begun(log)
        run = await house.run(pk)
        service.suspend()
        lease_end = await _lease_end(house, run.executor)
        assert await _gone([worker], within_s=EXPIRY.total_seconds()) < lease_end


@pytest.mark.services
async def test_a_run_of_a_healthy_executor_outlives_many_leases(house: House) -> None:
    await house.add_dag("holds", HOLDS_THE_LOCK)
    log = house.folder / "log"
    seconds = int(3 * EXPIRY.total_seconds())
    async with _registered_executor(house) as (executor, _):
        guard = _guard_of(executor)
        (pk,) = await house.queue("holds", params={"log": str(log), "seconds": seconds})
        (run,) = await house.ended(pk)
        assert _guard_of(executor) == guard
    assert (run.state, run.attempt) == ("success", 1)
    assert not is_alive(guard)


@pytest.mark.services
async def test_a_guard_that_is_killed_ends_the_runs_which_are_queued_again(house: House) -> None:
    await house.add_dag("stays", STAYS)
    log = house.folder / "log"
    with capture_logs() as logs:
        async with _registered_executor(house) as (executor, _):
            (pk,) = await house.queue("stays", params={"log": str(log)})
            worker = await _begun(log)
            (child,) = worker.children()
            guard = _guard_of(executor)
            guard.kill()
            await _gone([worker, child], within_s=5)
            # Only an extra sweep can find the run: no other executor exists, and the next regular sweep is far away.
            (run,) = await house.ended(pk, timeout=20)
            assert _guard_of(executor) != guard
    assert (run.state, run.executor, run.attempt) == ("success", "one", 1)
    warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert warnings == [
        "the guard of the executor's lease has ended: its runs end, and are queued again"
    ]


@pytest.mark.services
async def test_a_guard_that_is_stopped_ends_at_the_time_that_it_was_told_last(house: House) -> None:
    await house.add_dag("stays", STAYS)
    log = house.folder / "log"
    async with _registered_executor(house) as (executor, _):
        (pk,) = await house.queue("stays", params={"log": str(log)})
        worker = await _begun(log)
        _guard_of(executor).suspend()
        await _gone([worker], within_s=EXPIRY.total_seconds())
        (run,) = await house.ended(pk)
    assert (run.state, run.executor, run.attempt) == ("success", "one", 1)


async def test_a_run_that_ends_while_a_sweep_asks_the_store_is_queued_again_by_another_sweep(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor loses its lease, which kills the run's worker. The executor gets a new lease at once.

    The first sweep still counts the run as running, because the run's worker has not ended yet. So
    a second sweep must queue the run again.
    """
    await house.add_dag("stays", STAYS)
    log = house.folder / "log"
    async with _registered_executor(house) as (executor, _):
        (pk,) = await house.queue("stays", params={"log": str(log)})
        await _begun(log)
        sweep, counted = Claims.sweep, list[set[int]]()

        async def sweep_slowly(claims: Claims, known: Set[int]) -> dict[int, RunClaim]:
            counted.append(set(known))
            found = await sweep(claims, known)
            with anyio.fail_after(30):
                while executor.executing:  # noqa: ASYNC110  (told to the executor only)
                    await anyio.sleep(0.01)
            return found

        monkeypatch.setattr(Claims, "sweep", sweep_slowly)
        executor.mark_lease_lost()
        assert executor.guard is not None
        executor.mark_lease_acquired(executor.guard)
        (run,) = await house.ended(pk, timeout=30)
    assert counted[0] == {pk}
    assert (run.state, run.attempt) == ("success", 1)


@pytest.mark.services
async def test_nothing_is_left_of_an_executor_that_is_killed(
    house: House, postgres_url: str
) -> None:
    await house.add_dag("stays", STAYS)
    log = house.folder / "log"
    with _service(house, postgres_url) as service:
        await house.queue("stays", params={"log": str(log)})
        await _begun(log)
        family = service.children(recursive=True)
        # The guard, a worker, the run's process and its child; and perhaps a process that waits.
        assert len(family) >= 4
        service.kill()
        await _gone(family, within_s=5)


@pytest.mark.soak
@pytest.mark.services
@pytest.mark.timeout(600)
@pytest.mark.rule("15: executors and workers too stop by their own clock, before others may begin")
async def test_a_jvm_is_gone_before_others_may_begin_its_run(
    house: House, postgres_url: str, trained_home: TrainedHome
) -> None:
    trained_home.lend_archive(house.home)
    await house.add_dag("on_spark", ON_SPARK, needs_spark=True)
    log = house.folder / "log"
    expiry = timedelta(seconds=15)
    with _service(house, postgres_url, expiry=expiry) as service:
        (pk,) = await house.queue("on_spark", params={"log": str(log)})
        await _begun(log, within_s=120)
        family = service.children(recursive=True)
        assert sum(is_java(one) for one in family) == 1
        run = await house.run(pk)
        service.suspend()
        lease_end = await _lease_end(house, run.executor)
        # Spark's Python workers are in process groups of their own, and exit by themselves some time after the JVM.
        # Suspend all processes, so that only the kernel can end them.
        assert len({os.getpgid(one.pid) for one in family}) > 3
        for one in family:
            one.suspend()
        try:
            assert await _gone(family, within_s=expiry.total_seconds()) < lease_end
        finally:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


async def test_a_worker_that_starts_after_its_guard_has_ended_does_not_live(
    worker_setup: dict[str, Any],
) -> None:
    async with aclosing(await LeaseGuard.start(boottime() + 3600)) as guard:
        assert not guard.has_ended
        psutil.Process(guard.pid).kill()
        with anyio.fail_after(30):
            assert await guard.wait() == -signal.SIGKILL
        async with open_worker(worker_setup, guard) as worker:
            with anyio.fail_after(60):
                await worker.gone.wait()
            assert worker.returncode == -signal.SIGKILL
            assert worker.has_lost_guard


async def test_a_guard_ends_only_when_it_is_due() -> None:
    due = boottime() + 0.5
    async with aclosing(await LeaseGuard.start(due)) as guard:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guard.pid, signum)
        guard.extend(due + 1)
        with anyio.fail_after(60):
            assert await guard.wait() == -signal.SIGKILL
        assert due + 1 <= boottime() < due + 50
        assert guard.has_ended
        # `extend` must not raise if a heartbeat calls it before the executor has noticed the end of the guard.
        guard.extend(due + 100)


async def test_a_guard_whose_time_is_over_does_not_start() -> None:
    with pytest.raises(ChildProcessError):
        await LeaseGuard.start(boottime() - 1)


async def test_a_system_without_such_timers_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lease_guard.__file__ is not None
    code = Path(lease_guard.__file__).read_text()
    other = tmp_path / "lease_guard.py"
    other.write_text(code.replace('"timer_create"', '"no_such_function"'))
    monkeypatch.setattr(lease_guard, "__file__", str(other))
    with pytest.raises(ConfigurationError, match="the C library has no timer_create"):
        await LeaseGuard.start(boottime() + 3600)
