"""Attempts and their launches, from the claim to the end, on each database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import anyio
import pytest
from sqlalchemy import select, text, update

from tests.ending_process import EndingProcess
from tests.fake_launcher import Place
from tests.store.seeding import add_dag
from triggerer.domain.actors import CLI, Actor, Role
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunEnd, RunOrder, TaskResult
from triggerer.domain.launches import CONNECT, FormerLaunch, Launch
from triggerer.domain.runs import RunState, TaskState
from triggerer.errors import MoveRefused, StoreError, UnknownRun
from triggerer.executor.left_launches import LeftLaunches
from triggerer.executor.result_writer import ResultWriter
from triggerer.operations.runs import cancel_run, clear_run, resolve_run, retry_run
from triggerer.scheduler.explaining import why_not
from triggerer.store.database.transactions import Database
from triggerer.store.listing.views import AttemptView
from triggerer.store.runs.attempts.claims import claim_runs, claimed_runs
from triggerer.store.runs.attempts.listing import list_attempts
from triggerer.store.runs.attempts.steps import (
    begin_run,
    block_attempt,
    save_launches,
    settle_attempts,
)
from triggerer.store.runs.cleaning import delete_runs, lock_old_runs
from triggerer.store.runs.creation.create_run import create_manual_run
from triggerer.store.runs.held import release_due
from triggerer.store.runs.listing import list_runs
from triggerer.store.runs.orphans import recover_orphans
from triggerer.store.runs.pooled_claims import claim_with_pools
from triggerer.store.runs.results import AttemptUpdate, SaveResults, run_claims
from triggerer.store.runs.transitions import requeue_runs
from triggerer.store.schema.models import Dag, DagRun, RunAttempt, RunLaunch
from triggerer.worker.launchers import Ended, Handle, Running
from triggerer.worker.launchers.former_attempts import FormerAttempts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVER = "sc://host:15002"
ME = "host:1:aaaa"
OTHER = "host:2:bbbb"
SOMEBODY = Actor("somebody", Role.OPERATOR, CLI)


async def queue(database: Database, *, needs_spark: bool = False, dag: str = "d") -> None:
    await add_dag(database, dag, None)
    async with database.transaction() as session:
        tasks = [{"task_id": "t", "needs_spark": needs_spark, "upstream": []}]
        await session.execute(update(Dag).where(Dag.dag_id == dag).values(tasks=tasks))
        await create_manual_run(session, dag)


async def claim(
    database: Database, executor: str = ME, connect: str | None = None, limit: int = 10
) -> list[RunOrder]:
    given: dict[str, Any] = {"executor": executor, "log_home": "/home", "connect": connect}
    (rows,) = await database.perform_steps([claim_runs(limit=limit, **given)])
    return claimed_runs(rows, **given)


async def claim_one(database: Database, executor: str = ME, connect: str | None = None) -> RunOrder:
    (order,) = await claim(database, executor, connect)
    return order


async def recover(database: Database, executor: str = OTHER) -> None:
    async with database.transaction() as session:
        await recover_orphans(session, executor=executor, is_alone=True)


async def attempts_of(database: Database, order: RunOrder) -> list[AttemptView]:
    async with database.reading() as session:
        return await list_attempts(session, order.dag_id, order.run_id)


async def states_of(database: Database, order: RunOrder) -> list[tuple[int, int, str]]:
    return [(one.number, one.epoch, one.state) for one in await attempts_of(database, order)]


async def run_of(database: Database, order: RunOrder) -> DagRun:
    async with database.reading() as session:
        return (await session.scalars(select(DagRun).where(DagRun.id == order.run_pk))).one()


async def report(database: Database, *updates: AttemptUpdate, executor: str = ME) -> bool:
    """Save updates; return whether the store took them."""
    (rows,) = await database.perform_steps([SaveResults(executor, updates, "nobody here")])
    claims = run_claims(rows)
    order = updates[0].order
    return order.run_pk in claims and claims[order.run_pk].epoch == order.epoch


async def launched(
    database: Database, order: RunOrder, *launches: Launch, executor: str = ME
) -> int:
    """Save launches; return how many the store took."""
    step = save_launches(executor=executor, news=[(order, one) for one in launches])
    assert step is not None
    rows, _ = await database.perform_steps([step, settle_attempts([order.run_pk])])
    return len(rows)


def task(state: TaskState = TaskState.SUCCESS) -> TaskResult:
    ended = NOW if state.is_final else None
    return TaskResult("t", state, 1, NOW, ended)


def end(state: RunState = RunState.SUCCESS, **values: Any) -> RunEnd:
    return RunEnd(state, NOW, **values)


def launch_of(order: RunOrder, state: AttemptState, **values: Any) -> Launch:
    return Launch(order.tag, CONNECT, state, NOW, **values)


async def test_a_claim_leaves_the_intent_with_the_tag_that_the_order_has(
    database: Database,
) -> None:
    await queue(database)
    order = await claim_one(database)
    assert (order.attempt, order.epoch, order.former) == (1, 1, ())
    (stored,) = await attempts_of(database, order)
    assert stored.tag == order.tag == f"triggerer-aaaa-{order.run_pk}-1-1"
    assert (stored.state, stored.executor, stored.started_at) == ("intended", ME, None)


async def test_a_claim_with_pools_leaves_the_intents_of_all_its_runs(database: Database) -> None:
    for dag in ("a", "b", "c"):
        await queue(database, dag=dag)
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(pools="p"))
    rows = await database.perform(
        claim_with_pools(executor=ME, limit=10, log_home="/home", slots={"p": 2})
    )
    orders = claimed_runs(rows, executor=ME, log_home="/home")
    assert len(orders) == 2
    for order in orders:
        assert [one.tag for one in await attempts_of(database, order)] == [order.tag]


@pytest.mark.parametrize("needs_spark", [True, False])
@pytest.mark.parametrize("server", [SERVER, None])
async def test_only_an_attempt_that_may_open_a_session_on_a_server_says_so(
    database: Database, needs_spark: bool, server: str | None
) -> None:
    await queue(database, needs_spark=needs_spark)
    order = await claim_one(database, connect=server)
    expected = server if needs_spark else None
    assert order.connect == expected
    async with database.reading() as session:
        row = (await session.scalars(select(RunAttempt))).one()
    assert (row.launcher, row.place) == ("connect" if expected else "worker", expected)


async def test_the_epoch_grows_with_each_claim_and_take_over_and_never_shrinks(
    database: Database,
) -> None:
    await queue(database)
    seen = [await claim_one(database)]
    for attempt in (2, 2, 2):
        # The attempt never began, so its number is used again.
        await recover(database)
        seen.append(await claim_one(database))
        assert seen[-1].attempt == attempt
    async with database.transaction() as session:
        epochs = {seen[-1].run_pk: seen[-1].epoch}
        assert await requeue_runs(session, executor=ME, epochs=epochs, have_begun=False) == 1
    seen.append(await claim_one(database))
    assert [order.attempt for order in seen] == [1, 2, 2, 2, 2]
    epochs_seen = [order.epoch for order in seen]
    assert epochs_seen == sorted(set(epochs_seen))
    assert len({order.tag for order in seen}) == len(seen)


async def test_an_attempt_runs_once_it_has_reported_and_ends_with_its_run(
    database: Database,
) -> None:
    await queue(database)
    order = await claim_one(database)
    assert await report(database, AttemptUpdate(order, (task(TaskState.RUNNING),)))
    (stored,) = await attempts_of(database, order)
    assert (stored.state, stored.started_at, stored.ended_at) == ("running", NOW, None)
    failed = end(RunState.FAILED, error="Traceback (most recent call last):\n  x\nValueError: no")
    assert await report(database, AttemptUpdate(order, (task(TaskState.FAILED),), failed))
    (stored,) = await attempts_of(database, order)
    assert (stored.state, stored.reason, stored.ended_at) == ("failed", "ValueError: no", NOW)


async def test_many_attempts_end_in_one_group(database: Database) -> None:
    for dag in ("a", "b", "c"):
        await queue(database, dag=dag)
    orders = await claim(database)
    updates = [AttemptUpdate(one, (task(TaskState.RUNNING),)) for one in orders]
    updates += [AttemptUpdate(one, (task(),), end()) for one in orders]
    assert await report(database, *updates)
    for order in orders:
        assert await states_of(database, order) == [(1, 1, "success")]


async def test_a_report_of_an_older_epoch_is_refused_even_if_the_attempt_has_the_same_number(
    database: Database,
) -> None:
    await queue(database)
    await claim_one(database)
    await recover(database)
    old = await claim_one(database)
    # The attempt had not begun. So after the recovery, the next claim has the same attempt number.
    await recover(database)
    new = await claim_one(database)
    assert (old.attempt, old.epoch < new.epoch) == (new.attempt, True)
    assert not await report(database, AttemptUpdate(old, (task(),), end()))
    launch = launch_of(old, AttemptState.RUNNING)
    assert await launched(database, old, launch) == 0
    (begun,) = await database.perform_steps(
        [begin_run(executor=ME, run_pk=old.run_pk, epoch=old.epoch)]
    )
    assert begun == []
    assert (await run_of(database, new)).state == "running"
    assert [state for *_, state in await states_of(database, new)] == ["lost", "lost", "intended"]
    assert await report(database, AttemptUpdate(new, (task(),), end()))
    assert (await run_of(database, new)).state == "success"


async def test_an_attempt_whose_work_ends_with_its_process_is_lost_with_its_executor(
    database: Database,
) -> None:
    await queue(database)
    first = await claim_one(database)
    await recover(database)
    (lost,) = await attempts_of(database, first)
    assert (lost.state, lost.reason) == ("lost", f"its executor {ME} died")
    second = await claim_one(database, OTHER)
    assert (second.attempt, second.former) == (2, ())


async def test_a_session_of_a_dead_executor_is_handed_to_the_next_attempt_even_if_never_reported(
    database: Database,
) -> None:
    await queue(database, needs_spark=True)
    first = await claim_one(database, connect=SERVER)
    await recover(database)
    assert await states_of(database, first) == [(1, 1, "unknown")]
    second = await claim_one(database, OTHER, connect=SERVER)
    (former,) = second.former
    since = former.unknown_since
    assert former == FormerLaunch(
        first.tag,
        CONNECT,
        1,
        AttemptState.UNKNOWN,
        place=SERVER,
        unknown_since=since,
        may_continue=True,
    )
    assert since is not None
    assert since > NOW
    gone = Launch(first.tag, CONNECT, AttemptState.KILLED, NOW, external_id="session", reason="x")
    assert await launched(database, second, gone, executor=OTHER) == 1
    states = [state for *_, state in await states_of(database, second)]
    assert states == ["killed", "intended"]
    await recover(database, ME)
    # The first attempt's session is confirmed to be gone, so only the second one's is left.
    third = await claim_one(database, ME, connect=SERVER)
    assert [one.tag for one in third.former] == [second.tag]


async def test_a_session_that_was_released_before_the_executor_died_blocks_nothing(
    database: Database,
) -> None:
    await queue(database, needs_spark=True)
    first = await claim_one(database, connect=SERVER)
    assert await launched(
        database,
        first,
        launch_of(first, AttemptState.RUNNING, external_id="session"),
        launch_of(first, AttemptState.SUCCESS),
    )
    await recover(database)
    (lost,) = await attempts_of(database, first)
    assert (lost.state, lost.application_id) == ("lost", "session")
    assert (await claim_one(database, OTHER, connect=SERVER)).former == ()


async def test_the_stored_end_of_a_launch_is_final(database: Database) -> None:
    await queue(database, needs_spark=True)
    order = await claim_one(database, connect=SERVER)
    await launched(database, order, launch_of(order, AttemptState.SUCCESS))
    assert await launched(database, order, launch_of(order, AttemptState.RUNNING)) == 0
    ((launch,),) = [one.launches for one in await attempts_of(database, order)]
    assert launch.state == "success"


async def test_a_launch_that_a_later_attempt_follows_belongs_to_it(database: Database) -> None:
    await queue(database)
    first = await claim_one(database)
    app = Launch("app", "standalone", AttemptState.RUNNING, NOW, task_id="t", external_id="app-1")
    await launched(database, first, app)
    await recover(database)
    second = await claim_one(database, OTHER)
    assert [one.external_id for one in second.former] == ["app-1"]
    await launched(database, second, app, executor=OTHER)
    one, two = await attempts_of(database, second)
    assert (one.state, one.launches) == ("lost", [])
    assert (two.application_id, two.launches[0].state) == ("app-1", "running")


def ask_about_former(order: RunOrder) -> list[str]:
    """End the applications of former attempts, unless the attempt may follow them. Return what the cluster was asked.

    The cluster can be asked to follow an application.
    """
    handle = Handle("app", "app-1")
    cluster = Place(Running(handle), Ended(handle, AttemptState.KILLED), can_reattach=True)
    FormerAttempts(
        lambda name: cluster,
        on_launch=lambda launch: None,
        on_wait=lambda wait: None,
        patience=timedelta(0),
    ).end_all(order.former, may_reattach=True)
    return cluster.asked


async def launch_application(database: Database) -> RunOrder:
    """Return an attempt whose application works on a cluster."""
    await queue(database)
    order = await claim_one(database)
    app = Launch("app", "yarn", AttemptState.RUNNING, NOW, task_id="t", place="there")
    await launched(database, order, app)
    return order


async def test_an_application_is_followed_while_its_run_has_not_ended(database: Database) -> None:
    await launch_application(database)
    await recover(database)
    assert ask_about_former(await claim_one(database, OTHER)) == ["find"]


@pytest.mark.parametrize("repeat", [clear_run, retry_run])
async def test_an_application_of_a_run_that_has_ended_is_stopped_and_not_followed(
    database: Database, repeat: Callable[..., Awaitable[object]]
) -> None:
    first = await launch_application(database)
    killed = end(RunState.FAILED, error="killed", exit_code=-9)
    assert await report(database, AttemptUpdate(first, (), killed))
    async with database.transaction() as session:
        await repeat(session, SOMEBODY, "d", first.run_id)
    second = await claim_one(database, OTHER)
    assert ask_about_former(second) == ["find", "stop app-1"]
    await recover(database, ME)
    third = await claim_one(database)
    assert ask_about_former(third) == ["find", "stop app-1"]


async def test_a_cleared_run_follows_no_application_although_its_attempt_has_the_same_number(
    database: Database,
) -> None:
    first = await launch_application(database)
    async with database.transaction() as session:
        await requeue_runs(session, executor=ME, epochs={first.run_pk: first.epoch})
        await cancel_run(session, SOMEBODY, "d", first.run_id)
        await clear_run(session, SOMEBODY, "d", first.run_id)
    second = await claim_one(database)
    assert second.attempt == first.attempt
    assert ask_about_former(second) == ["find", "stop app-1"]


async def test_a_worker_that_died_and_left_a_session_leaves_its_attempt_unknown(
    database: Database,
) -> None:
    await queue(database, needs_spark=True)
    order = await claim_one(database, connect=SERVER)
    left = launch_of(order, AttemptState.UNKNOWN)
    killed = AttemptUpdate(
        order, (), end(RunState.FAILED, error="killed", exit_code=-9), launches=(left,)
    )
    await launched(database, order, left)
    assert await report(database, killed)
    assert (await run_of(database, order)).state == "failed"
    assert await states_of(database, order) == [(1, 1, "unknown")]


class _NothingToWrite:
    """A result writer that has stored all results."""

    async def written(self) -> None:
        pass


async def test_an_end_of_a_left_launch_that_was_not_stored_completely_is_searched_for_again(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue(postgres, needs_spark=True)
    order = await claim_one(postgres, connect=SERVER)
    unknown = launch_of(order, AttemptState.UNKNOWN)
    await launched(postgres, order, unknown)
    ended = end(RunState.FAILED, error="killed", exit_code=-9)
    assert await report(postgres, AttemptUpdate(order, (), ended, launches=(unknown,)))
    assert await states_of(postgres, order) == [(1, 1, "unknown")]

    def left() -> LeftLaunches:
        ending = EndingProcess(launch_of(order, AttemptState.KILLED))
        monkeypatch.setattr("triggerer.executor.left_launches.ChildProcess", ending)
        writer = cast("ResultWriter", _NothingToWrite())
        return LeftLaunches(postgres, writer, executor=ME, spark={}, sweep_every_s=60)

    async with postgres.transaction() as session:
        for statement in _REFUSE_ATTEMPTS:
            await session.execute(text(statement))
    with pytest.raises(StoreError, match="not now"):
        await left().run()
    async with postgres.transaction() as session:
        await session.execute(text("DROP TRIGGER refuse ON run_attempt"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(left().run)
        with anyio.move_on_after(20):
            while await states_of(postgres, order) != [(1, 1, "killed")]:  # noqa: ASYNC110 (not announced)
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    assert await states_of(postgres, order) == [(1, 1, "killed")]


_REFUSE_ATTEMPTS = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$",
    "CREATE TRIGGER refuse BEFORE UPDATE ON run_attempt EXECUTE FUNCTION refuse()",
)


async def test_a_former_launch_and_its_attempt_end_in_one_transaction(postgres: Database) -> None:
    await queue(postgres, needs_spark=True)
    await claim_one(postgres, connect=SERVER)
    await recover(postgres)
    order = await claim_one(postgres, OTHER, connect=SERVER)
    (former,) = order.former
    killed = Launch(former.tag, CONNECT, AttemptState.KILLED, NOW)

    async def write() -> None:
        writer = ResultWriter(postgres, OTHER)
        writer.submit_nowait(AttemptUpdate(order, launches=(killed,)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            await writer.written()
            tasks.cancel_scope.cancel()

    is_open = select(RunLaunch.ended_at.is_(None)).where(RunLaunch.tag == former.tag)
    # As if the process had died before it settled the attempt.
    async with postgres.transaction() as session:
        await session.execute(text(_REFUSE_ATTEMPTS[0]))
        await session.execute(
            text(
                "CREATE TRIGGER refuse BEFORE UPDATE ON run_attempt FOR EACH ROW"
                " WHEN (OLD.state = 'unknown') EXECUTE FUNCTION refuse()"
            )
        )
    with pytest.raises(ExceptionGroup) as raised:
        await write()
    assert raised.group_contains(StoreError, match="not now")
    async with postgres.transaction() as session:
        assert await session.scalar(is_open)
        await session.execute(text("DROP TRIGGER refuse ON run_attempt"))
    await write()
    async with postgres.reading() as session:
        assert not await session.scalar(is_open)
    assert (1, 1, "killed") in await states_of(postgres, order)


async def test_an_operator_resolves_an_unknown_attempt_without_open_launches(
    database: Database,
) -> None:
    first, _ = await blocked(database)
    async with database.transaction() as session:
        await session.execute(update(RunLaunch).values(ended_at=NOW))
    async with database.transaction() as session:
        assert await resolve_run(session, SOMEBODY, "d", first.run_id) == [1]
    assert await states_of(database, first) == [(1, 1, "lost")]


async def blocked(database: Database) -> tuple[RunOrder, RunOrder]:
    """Return an attempt that may still be at work, and the run's next attempt, which therefore cannot begin."""
    await queue(database, needs_spark=True)
    first = await claim_one(database, connect=SERVER)
    await recover(database)
    second = await claim_one(database, OTHER, connect=SERVER)
    step = block_attempt(executor=OTHER, order=second, reason="the end of attempt 1: silence")
    (rows,) = await database.perform_steps([step])
    assert len(rows) == 1
    return first, second


async def test_a_run_waits_while_nobody_can_tell_whether_a_former_attempt_works(
    database: Database,
) -> None:
    _, second = await blocked(database)
    run = await run_of(database, second)
    assert (run.state, run.attempt, run.epoch) == ("queued", 1, second.epoch)
    assert run.held_until is not None
    async with database.reading() as session:
        (view,) = await list_runs(session)
    assert (view.waiting_for, view.waiting_since) == (
        "the end of attempt 1: silence",
        second.former[0].unknown_since,
    )
    # Attempt 2 could not begin. So it does not count, and leaves no row.
    assert await states_of(database, second) == [(1, 1, "unknown")]
    assert await claim(database, OTHER) == []


async def test_why_not_names_the_former_attempt_that_a_blocked_run_waits_for(
    database: Database,
) -> None:
    _, second = await blocked(database)
    async with database.transaction() as session:
        await create_manual_run(session, "d")
    async with database.reading() as session:
        found = await why_not(session, "d")
    assert [f"{hold.kind}: {hold.reason}" for hold in found.holds[:2]] == [
        f"attempt: its run {second.run_id} is queued, and waits for the end of attempt 1: silence",
        "worker: 1 run is queued, waiting for an executor: none is running",
    ]


@pytest.mark.parametrize("holds", [True, False])
async def test_a_blocked_run_is_tried_again_when_its_time_has_come_and_not_before(
    database: Database, holds: bool
) -> None:
    _, second = await blocked(database)

    async def released() -> list[str]:
        async with database.transaction() as session:
            return await release_due(session, holds_broken=holds, executor=OTHER, is_alone=False)

    assert await released() == []
    async with database.transaction() as session:
        past = datetime.now(UTC) - timedelta(seconds=1)
        await session.execute(update(DagRun).values(held_until=past))
    assert await released() == ["d"]
    third = await claim_one(database, OTHER, connect=SERVER)
    assert (third.attempt, third.former) == (2, second.former)


async def test_an_operator_resolves_an_unknown_attempt_and_the_run_is_tried_at_once(
    database: Database,
) -> None:
    first, _ = await blocked(database)
    async with database.transaction() as session:
        assert await resolve_run(session, SOMEBODY, "d", first.run_id) == [1]
    assert await states_of(database, first) == [(1, 1, "lost")]
    third = await claim_one(database, OTHER, connect=SERVER)
    assert (third.attempt, third.former) == (2, ())
    async with database.transaction() as session:
        with pytest.raises(MoveRefused, match="no attempt of the run"):
            await resolve_run(session, SOMEBODY, "d", first.run_id)
        with pytest.raises(UnknownRun):
            await resolve_run(session, SOMEBODY, "d", "no such run")


async def test_a_block_that_comes_after_the_operators_word_holds_nothing(
    database: Database,
) -> None:
    await queue(database, needs_spark=True)
    first = await claim_one(database, connect=SERVER)
    await recover(database)
    second = await claim_one(database, OTHER, connect=SERVER)
    async with database.transaction() as session:
        assert await resolve_run(session, SOMEBODY, "d", first.run_id) == [1]
    await database.perform_steps([block_attempt(executor=OTHER, order=second, reason="silence")])
    third = await claim_one(database, OTHER, connect=SERVER)
    assert (third.attempt, third.former) == (2, ())


async def test_the_session_of_the_present_attempt_is_not_resolved(database: Database) -> None:
    await queue(database, needs_spark=True)
    order = await claim_one(database, connect=SERVER)
    await launched(database, order, launch_of(order, AttemptState.RUNNING))
    async with database.transaction() as session:
        with pytest.raises(MoveRefused):
            await resolve_run(session, SOMEBODY, "d", order.run_id)


async def test_an_attempt_that_is_put_back_before_it_began_leaves_no_row(
    database: Database,
) -> None:
    await queue(database)
    order = await claim_one(database)
    async with database.transaction() as session:
        await requeue_runs(
            session, executor=ME, epochs={order.run_pk: order.epoch}, have_begun=False
        )
    assert await attempts_of(database, order) == []
    run = await run_of(database, order)
    assert (run.state, run.attempt, run.first_started_at) == ("queued", 0, None)


async def test_an_attempt_that_the_service_interrupts_is_killed_and_not_counted(
    database: Database,
) -> None:
    await queue(database)
    order = await claim_one(database)
    async with database.transaction() as session:
        await requeue_runs(session, executor=ME, epochs={order.run_pk: order.epoch})
    (stored,) = await attempts_of(database, order)
    assert (stored.state, stored.reason) == (
        "killed",
        "the service stopped, and the run was queued again",
    )
    assert (await claim_one(database)).attempt == 1


async def test_deleting_a_run_takes_its_attempts_and_launches_along(database: Database) -> None:
    await queue(database, needs_spark=True)
    order = await claim_one(database, connect=SERVER)
    await launched(database, order, launch_of(order, AttemptState.SUCCESS))
    await report(database, AttemptUpdate(order, (task(),), end()))
    later = datetime.now(UTC) + timedelta(days=1)
    async with database.transaction() as session:
        assert await lock_old_runs(session, [order.run_pk], later) == {order.run_pk}
        await delete_runs(session, [order.run_pk])
    async with database.reading() as session:
        for table in ("run_attempt", "run_launch", "dag_run"):
            assert await session.scalar(text(f"SELECT count(*) FROM {table}")) == 0
