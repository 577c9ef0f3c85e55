"""A DAG's callbacks after its runs have ended, in real workers."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.executor.conftest import House
from triggerer.domain.attempts import CallbackOrder
from triggerer.errors import StoreUnavailable
from triggerer.executor import callbacks
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.executor.slots.worker_process import WorkerProcess, open_worker
from triggerer.processes.own_lease import boottime
from triggerer.store.runs.callbacks import claim_call
from triggerer.store.schema.models import DagRun

DAG = """
    def note(name):
        def called(context):
            run = context["dag_run"]
            with open(context["params"]["notes"], "a") as notes:
                print(name, run.run_id, context["state"], (context["error"] or "").partition(":")[0], file=notes)
            print("called", name, len(context["triggering_asset_events"]))
        return called

    def breaks(context):
        raise SystemExit("a callback that raises")

    def dies(context):
        if Path(context["params"]["dies"]).exists():
            os._exit(3)

    def hangs(context):
        time.sleep(context["params"].get("hangs", 0))

    with DAG(
        "d",
        on_success_callback=[note("good"), breaks, note("last")],
        on_failure_callback=[note("bad"), dies, hangs],
    ):
        @task
        def works(params):
            if params.get("fails") == "raises":
                raise ValueError("x")
            if params.get("fails") == "exits":
                os._exit(7)
        works()
"""


async def _add(house: House) -> dict[str, str]:
    """Add the DAG; return the parameters of its runs."""
    await house.add_dag("d", DAG, callbacks="success,failed")
    return {"notes": str(house.folder / "notes"), "dies": str(house.folder / "dies")}


async def _called(house: House, *pks: int) -> list[DagRun]:
    """Wait until these runs have ended and have no callback that is due. Return the runs."""
    final = ("success", "failed", "cancelled")
    return [
        await house.until(pk, lambda run: run.state in final and run.callback is None) for pk in pks
    ]


def _notes(params: dict[str, str]) -> list[str]:
    path = Path(params["notes"])
    return path.read_text().splitlines() if path.exists() else []


async def test_each_end_calls_its_callbacks_once_and_what_one_raises_is_logged(
    any_house: House,
) -> None:
    house = any_house
    params = await _add(house)
    async with house.executor():
        (good,) = await _called(house, *await house.queue("d", params=params))
        (bad,) = await _called(house, *await house.queue("d", params=params | {"fails": "raises"}))
        (dead,) = await _called(house, *await house.queue("d", params=params | {"fails": "exits"}))
    assert _notes(params) == [
        f"good {good.run_id} success ",
        f"last {good.run_id} success ",
        f"bad {bad.run_id} failed task works failed",
        f"bad {dead.run_id} failed the run's process exited with code 7 in the middle of the run; its last output",
    ]
    assert (good.state, bad.state, dead.state) == ("success", "failed", "failed")
    log = house.log(good)
    assert "called good 0" in log
    assert "callback breaks failed" in log
    assert "SystemExit: a callback that raises" in log


async def test_a_cancelled_run_and_a_dag_that_wants_no_call_are_not_called_back(
    house: House,
) -> None:
    params = await _add(house)
    (pk,) = await house.queue("d", params=params)
    await house.cancel(pk)
    await house.add_dag("quiet", DAG.replace('"d"', '"quiet"'), callbacks="failed")
    async with house.executor():
        (quiet,) = await house.ended(*await house.queue("quiet", params=params))
        (run,) = await house.ended(pk)
    assert (run.state, run.callback) == ("cancelled", None)
    assert (quiet.state, quiet.callback) == ("success", None)
    assert _notes(params) == []


async def test_a_callback_that_ends_its_process_harms_nobody_and_is_not_repeated(
    house: House,
) -> None:
    params = await _add(house)
    Path(params["dies"]).touch()
    async with house.executor():
        pks = await house.queue("d", 2, params=params | {"fails": "raises"})
        runs = await _called(house, *pks)
    assert [run.state for run in runs] == ["failed", "failed"]
    assert len(_notes(params)) == 2
    assert "callbacks ended: their process has died (code 3)" in house.said_of_the_end(runs[0])


async def test_callbacks_that_take_too_long_are_ended(house: House) -> None:
    params = await _add(house)
    async with house.executor(callback_timeout=timedelta(seconds=2)):
        (run,) = await _called(
            house, *await house.queue("d", params=params | {"fails": "raises", "hangs": 600})
        )
    assert "callbacks ended: they took longer than 0:00:02" in house.said_of_the_end(run)


async def _until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        # Poll, because another process writes the file.
        while not holds():  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def test_callbacks_that_a_stop_interrupts_are_called_again(any_house: House) -> None:
    house = any_house
    params = await _add(house)
    (pk,) = await house.queue("d", params=params | {"fails": "raises", "hangs": 600})
    async with house.executor():
        await _until(lambda: len(_notes(params)) == 1)
    run = await house.run(pk)
    assert (run.callback, run.callback_attempts) == ("due", 0)
    await house.change_run(pk, params=params)
    async with house.executor("two"):
        await _called(house, pk)
    assert len(_notes(params)) == 2


@pytest.mark.parametrize("starts", [False, True], ids=["cannot start", "dies at once"])
async def test_callbacks_are_called_however_often_there_is_no_worker_for_them(
    any_house: House, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    house = any_house
    failures = 0

    @asynccontextmanager
    async def open_after_four_failures(*arguments: Any) -> AsyncIterator[WorkerProcess]:
        nonlocal failures
        fails = failures < 4
        failures += fails
        if fails and not starts:
            raise BlockingIOError("no process can be started")
        async with open_worker(*arguments) as worker:
            if fails:
                os.kill(worker.pid, signal.SIGKILL)
            yield worker

    monkeypatch.setattr("triggerer.executor.callbacks.open_worker", open_after_four_failures)
    params = await _add(house)
    (pk,) = await house.queue("d", params=params)
    async with house.executor(sweep_every=timedelta(seconds=0.05)):
        await _called(house, pk)
    assert failures == 4
    assert [line.split(" ")[0] for line in _notes(params)] == ["good", "last"]


async def test_a_stop_while_the_worker_of_callbacks_starts_hands_the_call_back(
    any_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = any_house
    starting = anyio.Event()

    @asynccontextmanager
    async def start_for_ever(*arguments: Any) -> AsyncIterator[WorkerProcess]:
        starting.set()
        await anyio.sleep_forever()
        async with open_worker(*arguments) as worker:
            yield worker

    monkeypatch.setattr("triggerer.executor.callbacks.open_worker", start_for_ever)
    (pk,) = await house.queue("d", params=await _add(house))
    async with house.executor():
        with anyio.fail_after(60):
            await starting.wait()
    run = await house.run(pk)
    assert (run.callback, run.callback_attempts) == ("due", 0)


async def test_callbacks_of_a_dead_executor_are_called_three_times_at_most(
    any_house: House,
) -> None:
    house = any_house
    params = await _add(house)
    await house.add_instance("alive")
    values = {"state": "failed", "params": params, "callback": "running"}
    first, last = [
        (await house.queue("d", callback_executor="dead", callback_attempts=times, **values))[0]
        for times in (1, 3)
    ]
    (others,) = await house.queue("d", callback_executor="alive", callback_attempts=1, **values)
    # On SQLite no other executor can be alive.
    is_alone = house.database.dialect == "sqlite"
    async with house.executor():
        runs = await _called(house, first, last, *([others] if is_alone else []))
    assert runs[0].run_id in [line.split(" ")[1] for line in _notes(params)]
    called = [line.split(" ")[1] for line in _notes(params)]
    assert runs[1].run_id not in called
    assert ((await house.run(others)).run_id in called) == is_alone


async def test_a_run_that_is_given_up_calls_back(any_house: House) -> None:
    house = any_house
    params = await _add(house)
    now = datetime.now(UTC)
    (pk,) = await house.queue(
        "d", state="running", executor="dead", attempt=3, started_at=now, params=params
    )
    async with house.executor():
        (run,) = await _called(house, pk)
    assert run.error is not None
    assert run.error.startswith("given up after 3 attempts")
    assert len(_notes(params)) == 1


async def test_callbacks_whose_worker_dies_with_the_lease_are_called_again(house: House) -> None:
    params = await _add(house)
    async with house.executor(sweep_every=timedelta(seconds=0.1)) as executor:
        async with aclosing(await LeaseGuard.start(boottime() + 3600)) as guard:
            executor.mark_lease_acquired(guard)
            (pk,) = await house.queue("d", params=params | {"fails": "raises", "hangs": 600})
            await _until(lambda: len(_notes(params)) == 1)
        executor.mark_lease_lost()
        await house.change_run(pk, params=params)
        async with aclosing(await LeaseGuard.start(boottime() + 3600)) as guard:
            executor.mark_lease_acquired(guard)
            await _called(house, pk)
    assert len(_notes(params)) == 2


async def test_an_outage_of_the_store_between_two_calls_does_not_end_the_executor(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = await _add(house)
    claims: list[CallbackOrder | None] = []

    async def claim(*arguments: Any, **values: Any) -> CallbackOrder | None:
        if len(claims) == 1:
            claims.append(None)
            raise StoreUnavailable("the store is away")
        claims.append(await claim_call(*arguments, **values))
        return claims[-1]

    pks = await house.queue("d", 2, params=params, state="success", callback="due")
    monkeypatch.setattr(callbacks, "claim_call", claim)
    async with house.executor():
        await _called(house, *pks)
    assert len(_notes(params)) == 4


@pytest.mark.parametrize("is_held_again", [False, True])
async def test_a_lease_that_ends_during_the_claim_of_a_call_prevents_the_call(
    house: House, monkeypatch: pytest.MonkeyPatch, is_held_again: bool
) -> None:
    """Between the two leases of this executor, another executor may have claimed the call."""
    params = await _add(house)
    has_claimed, may_return = anyio.Event(), anyio.Event()

    async def claim(*arguments: Any, **values: Any) -> CallbackOrder | None:
        call = await claim_call(*arguments, **values)
        if call is not None and not has_claimed.is_set():
            has_claimed.set()
            await may_return.wait()
        return call

    monkeypatch.setattr(callbacks, "claim_call", claim)
    async with (
        house.executor(sweep_every=timedelta(seconds=0.5)) as executor,
        aclosing(await LeaseGuard.start(boottime() + 3600)) as guard,
    ):
        (pk,) = await house.queue("d", params=params, state="success", callback="due")
        await has_claimed.wait()
        executor.mark_lease_lost()
        if not is_held_again:
            may_return.set()
            await anyio.sleep(3)  # nothing happens, so there is no event to wait for
            assert _notes(params) == []
        executor.mark_lease_acquired(guard)
        may_return.set()
        (run,) = await _called(house, pk)
    assert len(_notes(params)) == 2
    assert run.callback_attempts == 1
