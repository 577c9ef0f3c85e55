"""If an executor cannot renew its lease, its runs end before another executor may begin them."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import psutil
import pytest
from sqlalchemy import func, select, text

from tests.executor.conftest import House, open_house
from tests.isolation.conftest import until
from tests.services.process import is_alive
from triggerer.executor import Executor
from triggerer.executor.claimed_queue import PrefetchLimit
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.lease.registration import Registration
from triggerer.processes.own_lease import boottime
from triggerer.store.schema.models import Instance

EXPIRY = timedelta(seconds=6)

# The first run sleeps until it is killed. A later run touches `overlap` if the process of an earlier run is alive.
ONE_AT_A_TIME = """
    with DAG("one_at_a_time"):
        @task
        def one_at_a_time(params):
            import psutil

            log = Path(params["log"])
            before = log.read_text().split() if log.exists() else []
            # A worker executes several runs, one after the other.
            for pid in {int(pid) for pid in before} - {os.getpid()}:
                try:
                    has_ended = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
                except psutil.NoSuchProcess:
                    has_ended = True
                if not has_ended:
                    Path(params["overlap"]).touch()
            with log.open("a") as file:
                file.write(f"{os.getpid()}\\n")
            if not before:
                time.sleep(300)
        one_at_a_time()
    """


class Holder:
    """A lease holder that records the loss of its lease, and the first renewal after the loss."""

    def __init__(self) -> None:
        self.lost = anyio.Event()
        self.kept_again = anyio.Event()

    def mark_lease_lost(self) -> None:
        self.lost.set()

    def mark_lease_acquired(self, guard: LeaseGuard) -> None:
        if self.lost.is_set():
            self.kept_again.set()


def _params(folder: Path) -> dict[str, str]:
    return {name: str(folder / name) for name in ("log", "overlap")}


async def _begun(params: dict[str, str]) -> psutil.Process:
    log = Path(params["log"])
    with anyio.fail_after(20):
        while not (log.exists() and log.read_text().endswith("\n")):  # noqa: ASYNC110
            await anyio.sleep(0.02)
    return psutil.Process(int(log.read_text()))


async def _gone(process: psutil.Process) -> None:
    with anyio.fail_after(10):
        while is_alive(process):  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.mark.services
async def test_a_heartbeat_that_hangs_is_given_up_before_the_lease_is_over(
    postgres_url: str, tmp_path: Path
) -> None:
    holder = Holder()
    async with open_house(postgres_url, tmp_path) as house, anyio.create_task_group() as tasks:
        registration = Registration(house.database, "one", expiry=EXPIRY, holder=holder)
        await registration.renew()
        row = select(Instance).where(Instance.id == "one")
        async with house.database.transaction() as session:
            await session.execute(row.with_for_update())
            await tasks.start(registration.keep)
            with anyio.fail_after(EXPIRY.total_seconds()):
                await holder.lost.wait()
            async with house.database.reading() as reading:
                is_alive = select(Instance.expires_at > func.clock_timestamp())
                assert await reading.scalar(is_alive)
            assert not holder.kept_again.is_set()
        # The first heartbeat that waited for the lock has given up. A later one renews the lease.
        with anyio.fail_after(EXPIRY.total_seconds()):
            await holder.kept_again.wait()
        tasks.cancel_scope.cancel()


@pytest.mark.services
async def test_a_connection_that_is_dead_without_our_knowing_does_not_cost_the_lease(
    postgres_url: str, tmp_path: Path
) -> None:
    holder = Holder()
    expiry = timedelta(seconds=15)
    async with open_house(postgres_url, tmp_path) as house, anyio.create_task_group() as tasks:
        registration = Registration(house.database, "one", expiry=expiry, holder=holder)
        await registration.renew()
        await tasks.start(registration.keep)
        async with house.database.transaction() as session:
            pids = await session.scalars(
                text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
            )
        # The server neither answers nor closes the connection.
        stopped = [psutil.Process(pid) for pid in pids]
        for process in stopped:
            process.suspend()
        try:
            await anyio.sleep(1.5 * expiry.total_seconds())
            assert not holder.lost.is_set()
        finally:
            for process in stopped:
                process.resume()
        tasks.cancel_scope.cancel()


@pytest.mark.services
async def test_a_run_whose_lease_is_lost_has_ended_here_before_it_begins_elsewhere(
    postgres_url: str, tmp_path: Path
) -> None:
    params = _params(tmp_path)
    async with open_house(postgres_url, tmp_path) as house:
        await house.add_dag("one_at_a_time", ONE_AT_A_TIME)
        await house.add_instance("other")
        # The executor's own sweep, which comes minutes later, cannot be what ends the run.
        async with (
            house.executor("one", sweep_every=timedelta(minutes=5)) as one,
            anyio.create_task_group() as tasks,
        ):
            registration = Registration(house.database, "one", expiry=EXPIRY, holder=one)
            await registration.renew()
            await tasks.start(registration.keep)
            (pk,) = await house.queue("one_at_a_time", params=params)
            await _begun(params)
            async with (
                house.executor("other", sweep_every=timedelta(seconds=0.1)),
                house.database.transaction() as session,
            ):
                # The locked row keeps heartbeats of this executor out of the store.
                row = select(Instance).where(Instance.id == "one")
                await session.execute(row.with_for_update())
                (run,) = await house.ended(pk)
            tasks.cancel_scope.cancel()
    assert (run.state, run.executor, run.attempt) == ("success", "other", 2)
    assert not Path(params["overlap"]).exists()


async def test_an_executor_begins_nothing_until_its_lease_is_held_again(any_house: House) -> None:
    house = any_house
    params = _params(house.folder)
    await house.add_dag("one_at_a_time", ONE_AT_A_TIME)
    await house.add_instance("one")
    async with house.executor("one", workers=1, sweep_every=timedelta(seconds=0.1)) as executor:
        first, second = await house.queue("one_at_a_time", 2, params=params)
        worker = await _begun(params)
        executor.mark_lease_lost()
        await _gone(worker)
        await anyio.sleep(1)
        runs = [await house.run(pk) for pk in (first, second)]
        assert [run.state for run in runs] == ["running", "queued"]
        async with aclosing(await LeaseGuard.start(boottime() + 3600)) as guard:
            executor.mark_lease_acquired(guard)
            runs = await house.ended(first, second)
    # The interrupted attempt does not count.
    assert [(run.state, run.attempt) for run in runs] == [("success", 1)] * 2
    assert not Path(params["overlap"]).exists()


@asynccontextmanager
async def _two_claimed_ahead(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stale_s: float = 60,
    sweep_every: timedelta = timedelta(minutes=5),
) -> AsyncIterator[tuple[Executor, list[int], psutil.Process]]:
    """Run an executor that has begun one run and claimed two more.

    Yield the executor, the primary keys of the three runs, and the process of the run that has begun.
    """
    params = _params(house.folder)
    # Keep claimed runs for this time, because the worker may take long to start.
    monkeypatch.setattr("triggerer.executor.claimed_queue.STALE_SECONDS", stale_s)
    # The executor claims several runs at once, as if they were short.
    monkeypatch.setattr(PrefetchLimit, "runs", 64)
    await house.add_dag("one_at_a_time", ONE_AT_A_TIME)
    await house.add_instance("one")
    async with house.executor("one", workers=1, sweep_every=sweep_every) as executor:
        pks = await house.queue("one_at_a_time", 3, params=params)
        worker = await _begun(params)
        assert [(await house.run(pk)).state for pk in pks] == ["running"] * 3
        yield executor, pks, worker


async def test_a_run_that_was_cut_short_is_queued_again_although_its_slot_has_another_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the worker was gone, the executor had its lease back and had claimed further runs."""
    async with _two_claimed_ahead(house, monkeypatch) as (executor, pks, _):
        executor._slots[0].cut_short()
        runs = await house.ended(*pks)
    assert [(run.state, run.attempt) for run in runs] == [("success", 1)] * 3


async def test_runs_that_were_claimed_ahead_are_queued_again_with_the_lease(
    any_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = any_house
    async with _two_claimed_ahead(house, monkeypatch) as (executor, pks, worker):
        executor.mark_lease_lost()
        assert len(executor._claimed_queue) == 0
        await _gone(worker)
        await until(lambda: not executor.executing)
        async with aclosing(await LeaseGuard.start(boottime() + 3600)) as guard:
            executor.mark_lease_acquired(guard)
            runs = await house.ended(*pks)
    assert [(run.state, run.attempt) for run in runs] == [("success", 1)] * 3


async def test_a_sweep_leaves_runs_alone_that_were_claimed_a_moment_ago(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = timedelta(seconds=0.1)
    async with _two_claimed_ahead(house, monkeypatch, sweep_every=often) as (_, pks, _):
        epochs = [(await house.run(pk)).epoch for pk in pks]
        await anyio.sleep(0.5)
        assert [(await house.run(pk)).epoch for pk in pks] == epochs


async def test_claimed_runs_that_wait_too_long_go_back_however_much_happens_meanwhile(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another executor may have a free worker. Wake-ups of this executor must not prolong the runs' wait."""
    async with (
        _two_claimed_ahead(house, monkeypatch, stale_s=1.0) as (executor, pks, _),
        anyio.create_task_group() as tasks,
    ):
        epoch = (await house.run(pks[1])).epoch

        async def queue_further_runs() -> None:
            while True:
                executor._changed.set()
                await anyio.sleep(0.05)

        tasks.start_soon(queue_further_runs)
        await house.until(pks[1], lambda run: run.epoch > epoch, timeout=10)
        tasks.cancel_scope.cancel()
