"""Each run has a process of its own, so no run sees what another one has left."""

import json
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from tests.executor.conftest import House
from tests.executor.tasks.leftovers import (
    IN_A_DRIVER,
    IN_A_PROCESS,
    IN_A_SESSION,
    Leftover,
    source_of,
)
from tests.services.availability import service
from tests.services.clusters.spark_cluster import SparkCluster
from tests.services.clusters.spark_connect import open_connect_server
from tests.services.process import is_alive
from triggerer.executor import Executor


async def _seen(house: House, executor: Executor, folder: Path) -> list[dict[str, str]]:
    """Execute three runs, which `look`, `leave` and `look` again. Return what the first and the third run saw."""
    seen = []
    pids = None
    for number, what in enumerate(("look", "leave", "look")):
        params = {"what": what, "out": str(folder / str(number)), "note": str(folder / "note")}
        (run,) = await house.ended(*await house.queue("leaves", params=params), timeout=300)
        assert (run.state, run.error) == ("success", None)
        # All runs have the same worker.
        pids = pids or executor.worker_pids
        assert executor.worker_pids == pids
        if what == "look":
            seen.append(json.loads((folder / str(number)).read_text()))
    return seen


async def _assert_clean(
    house: House, folder: Path, leftovers: dict[str, Leftover], **options: Any
) -> None:
    spark = "spark" in options
    await house.add_dag("leaves", source_of("leaves", leftovers, spark=spark), needs_spark=spark)
    async with house.executor(workers=1, prewarm=False, **options) as executor:
        before, after = await _seen(house, executor, folder)
    assert after == before
    assert before.keys() == leftovers.keys()


async def test_a_run_without_spark_sees_nothing_of_another_one(
    house: House, tmp_path: Path
) -> None:
    await _assert_clean(house, tmp_path, IN_A_PROCESS)


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_run_on_a_local_driver_sees_nothing_of_another_one(
    house: House, tmp_path: Path
) -> None:
    everything = IN_A_PROCESS | IN_A_SESSION | IN_A_DRIVER
    await _assert_clean(house, tmp_path, everything, spark={"master": "local[2]"})


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_run_on_a_cluster_sees_nothing_of_another_one(
    house: House, tmp_path: Path, spark_cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    everything = IN_A_PROCESS | IN_A_SESSION | IN_A_DRIVER
    spark = {"mode": "classic", "master": spark_cluster.url}
    await _assert_clean(house, tmp_path, everything, spark=spark)


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_run_over_connect_sees_nothing_of_another_one(house: House, tmp_path: Path) -> None:
    with service(open_connect_server()) as server:
        everything = IN_A_PROCESS | IN_A_SESSION
        # A global view belongs to the server. The view does not show which run created it, so triggerer cannot drop it.
        del everything["global views"]
        await _assert_clean(house, tmp_path, everything, spark={"remote": server.remote})


LEAVES_PROCESSES = """
    import subprocess

    def daemonise():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(300)
            os._exit(0)
        os.wait()

    with DAG("leaves_processes"):
        @task
        def leaves():
            subprocess.Popen(["sleep", "300"])
            subprocess.Popen(["sleep", "300"], start_new_session=True)
            daemonise()
        leaves()
    """


async def test_processes_that_a_run_leaves_behind_are_ended_with_it(house: House) -> None:
    await house.add_dag("leaves_processes", LEAVES_PROCESSES)
    async with house.executor(workers=1) as executor:
        (run,) = await house.ended(*await house.queue("leaves_processes"))
        assert run.state == "success"
        worker = psutil.Process(executor.worker_pids[0])
        with anyio.fail_after(10):
            while True:
                # Only the process that waits for the next order may be left.
                left = [one for one in worker.children(recursive=True) if is_alive(one)]
                if len(left) == 1:
                    break
                await anyio.sleep(0.02)


FORKS = """
    with DAG("forks"):
        @task(outlets=[Asset("x-forks")])
        def forks(params):
            if os.fork() == 0:
                # It returns from the task, too.
                return "child"
            os.wait()
            raise ValueError("the parent fails")
        forks()
    """


async def test_a_fork_that_returns_from_a_task_does_not_go_on_as_a_second_run(
    house: House,
) -> None:
    await house.add_dag("forks", FORKS)
    async with house.executor(workers=1):
        runs = await house.ended(*await house.queue("forks", 2))
    assert [run.state for run in runs] == ["failed", "failed"]
    assert all("the parent fails" in (run.error or "") for run in runs)
    assert await house.events("x-forks") == []
