"""What goes along with a group that cannot be written."""

from typing import Any, cast

import anyio
import pytest

from triggerer.errors import ConfigurationError, OutcomeUnknown, StoreUnavailable
from triggerer.execution.bookkeeper import Bookkeeper
from triggerer.store.engine.statement import Statement


class Refuses:
    """A database that always raises the same error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def each(self, steps: Any) -> Any:
        raise self.error


NOTHING = Statement("SELECT 1")()


async def test_an_error_of_the_store_is_told_to_who_went_along() -> None:
    bookkeeper = Bookkeeper(cast("Any", Refuses(StoreUnavailable("away"))), "me")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bookkeeper.run)
        for _ in range(2):
            with pytest.raises(StoreUnavailable), anyio.fail_after(5):
                await bookkeeper.along(NOTHING)
        tasks.cancel_scope.cancel()


async def test_who_went_along_is_not_left_waiting_by_an_error_that_ends_the_bookkeeper() -> None:
    bookkeeper = Bookkeeper(cast("Any", Refuses(ConfigurationError("no rights"))), "me")

    async def go_along() -> None:
        with pytest.raises(ConfigurationError):
            await bookkeeper.along(NOTHING)
        told.append("told")

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_along)
            tasks.start_soon(bookkeeper.run)

    told: list[str] = []
    with pytest.raises(ExceptionGroup) as raised, anyio.fail_after(5):
        await both()
    assert raised.group_contains(ConfigurationError)
    assert told == ["told"]


class NeverAnswers:
    """A database whose transactions do not end."""

    async def each(self, steps: Any) -> Any:
        await anyio.sleep_forever()


async def test_who_went_along_is_not_left_waiting_by_a_bookkeeper_that_is_stopped() -> None:
    bookkeeper = Bookkeeper(cast("Any", NeverAnswers()), "me")

    async def go_along() -> None:
        with pytest.raises(OutcomeUnknown):
            await bookkeeper.along(NOTHING)
        told.append("told")

    told: list[str] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bookkeeper.run)
            tasks.start_soon(go_along)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert told == ["told"]
