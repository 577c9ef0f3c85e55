"""A caller whose steps join the next commit learns that this commit failed."""

from typing import Any, cast

import anyio
import pytest

from triggerer.errors import ConfigurationError, OutcomeUnknown, StoreUnavailable
from triggerer.executor.result_writer import ResultWriter
from triggerer.store.database.statement import Statement


class Refuses:
    """A database that always raises the same error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def perform_steps(self, steps: Any) -> Any:
        raise self.error


NOTHING = Statement("SELECT 1")()


async def test_an_error_of_the_store_is_raised_to_who_joined_a_commit() -> None:
    result_writer = ResultWriter(cast("Any", Refuses(StoreUnavailable("away"))), "me")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(result_writer.run)
        for _ in range(2):
            with pytest.raises(StoreUnavailable), anyio.fail_after(30):
                await result_writer.perform_with_next_commit(NOTHING)
        tasks.cancel_scope.cancel()


async def test_a_joined_step_does_not_wait_for_ever_after_an_error_that_ends_the_writer() -> None:
    result_writer = ResultWriter(cast("Any", Refuses(ConfigurationError("no rights"))), "me")

    async def join() -> None:
        with pytest.raises(ConfigurationError):
            await result_writer.perform_with_next_commit(NOTHING)
        told.append("told")

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(join)
            tasks.start_soon(result_writer.run)

    told: list[str] = []
    with pytest.raises(ExceptionGroup) as raised, anyio.fail_after(30):
        await both()
    assert raised.group_contains(ConfigurationError)
    assert told == ["told"]


class NeverAnswers:
    """A database whose transactions do not end."""

    async def perform_steps(self, steps: Any) -> Any:
        await anyio.sleep_forever()


async def test_a_joined_step_does_not_wait_for_ever_after_the_writer_was_stopped() -> None:
    result_writer = ResultWriter(cast("Any", NeverAnswers()), "me")

    async def join() -> None:
        with pytest.raises(OutcomeUnknown):
            await result_writer.perform_with_next_commit(NOTHING)
        told.append("told")

    told: list[str] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(result_writer.run)
            tasks.start_soon(join)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert told == ["told"]
