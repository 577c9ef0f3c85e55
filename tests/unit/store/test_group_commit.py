"""Group commit on a store that is away, refuses, or breaks."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from triggerer.backoff import Backoff
from triggerer.errors import (
    ConfigurationError,
    OutcomeUnknown,
    RowRefused,
    StoreError,
    StoreUnavailable,
    TriggererError,
)
from triggerer.store.database.group_commit import GroupCommit


class Numbers(GroupCommit[list[int]]):
    """Writes numbers, up to three at a time; `store` may raise instead of taking a group."""

    refusals = RowRefused

    def __init__(self, store: Callable[[list[int]], None] = lambda group: None) -> None:
        super().__init__(Backoff(first=0, longest=0))
        self.waiting: list[int] = []
        self.tried: list[list[int]] = []
        self.written: list[list[int]] = []
        self.refused: list[int] = []
        self.failures: list[int] = []
        self._store = store

    def submit_nowait(self, *numbers: int) -> None:
        self.waiting.extend(numbers)
        if self._is_idle:
            self._wake()

    def _take(self) -> list[int] | None:
        group, self.waiting = self.waiting[:3], self.waiting[3:]
        return group or None

    async def _write(self, group: list[int]) -> None:
        await anyio.lowlevel.checkpoint()
        self.tried.append(group)
        self._store(group)
        self.written.append(group)

    def _record_failure(self, error: TriggererError, delay: float) -> None:
        self.failures.append(self._backoff.failures)

    def _halves(self, group: list[int]) -> tuple[list[int], list[int]] | None:
        half = len(group) // 2
        return (group[:half], group[half:]) if half else None

    def _without_refused(self, group: list[int], error: StoreError) -> tuple[list[int], ...]:
        self.refused += group
        return ([-number for number in group],) if group == [7] else ()


async def until_idle(numbers: Numbers) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(numbers.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_rows_that_arrive_while_a_group_is_written_join_the_next_group() -> None:
    def arrive(group: list[int]) -> None:
        if group == [1]:
            numbers.submit_nowait(2, 3)

    numbers = Numbers(arrive)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(numbers.run)
        await anyio.wait_all_tasks_blocked()
        numbers.submit_nowait(1)
        await anyio.wait_all_tasks_blocked()
        numbers.submit_nowait(4)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert numbers.written == [[1], [2, 3], [4]]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("perhaps")])
async def test_a_group_that_is_not_taken_now_is_repeated_as_it_was(error: TriggererError) -> None:
    def fail_thrice(group: list[int]) -> None:
        if len(numbers.tried) <= 3:
            numbers.waiting.append(9)
            raise error

    numbers = Numbers(fail_thrice)
    numbers.submit_nowait(1, 2)
    await until_idle(numbers)
    assert numbers.tried == [*[[1, 2]] * 4, [9, 9, 9]]
    assert numbers.failures == [1, 2, 3]


async def test_an_item_that_is_refused_is_found_and_the_others_keep_their_order() -> None:
    def refuse(group: list[int]) -> None:
        if 2 in group or 7 in group:
            raise RowRefused("no")

    numbers = Numbers(refuse)
    numbers.submit_nowait(1, 2, 3, 6, 7, 8)
    await until_idle(numbers)
    # 7 was refused, and -7 is written in its place. 2 has no such replacement.
    assert [one for group in numbers.written for one in group] == [1, 3, 6, -7, 8]
    assert numbers.refused == [2, 7]
    assert numbers.failures == []


async def test_an_error_that_is_neither_ends_it() -> None:
    def break_down(group: list[int]) -> None:
        raise ConfigurationError("no rights")

    numbers = Numbers(break_down)
    numbers.submit_nowait(1)
    with pytest.raises(ConfigurationError):
        await numbers.run()
