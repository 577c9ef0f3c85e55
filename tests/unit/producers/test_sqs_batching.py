"""Entries share requests: the requests are full, and each entry gets its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from producers.sqs.batching import Batches, Failure
from triggerer.errors import BrokerUnavailable


class Service:
    """Receives requests, and answers each when the test allows it."""

    def __init__(self) -> None:
        self.requests: list[Sequence[str]] = []
        self.gate = anyio.Event()
        self.gate.set()
        self.failing: dict[str, Mapping[str, Any]] = {}
        self.error: Exception | None = None

    async def send(self, entries: Sequence[str]) -> Mapping[str, Any]:
        self.requests.append(list(entries))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        answer: dict[str, list[dict[str, Any]]] = {"Successful": [], "Failed": []}
        for index, entry in enumerate(entries):
            if entry in self.failing:
                answer["Failed"].append({"Id": str(index), **self.failing[entry]})
            elif entry != "forgotten":
                answer["Successful"].append({"Id": str(index)})
        return answer


@asynccontextmanager
async def running(service: Service, concurrency: int = 3) -> AsyncIterator[Batches[str]]:
    batches: Batches[str] = Batches(service.send, concurrency=concurrency)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batches.run)
        yield batches
        tasks.cancel_scope.cancel()


async def _add_all(batches: Batches[str], entries: Sequence[str]) -> None:
    async with anyio.create_task_group() as tasks:
        for entry in entries:
            tasks.start_soon(batches.add, entry)


async def test_an_entry_is_not_done_if_its_request_ends_in_an_error_that_nobody_expects() -> None:
    service = Service()
    service.error = ZeroDivisionError()
    batches: Batches[str] = Batches(service.send, concurrency=3)
    answers = []

    async def add() -> None:
        answers.extend(await batches.add_all(["a", "b"]))

    async with anyio.create_task_group() as callers:
        callers.start_soon(add)
        with pytest.raises(ExceptionGroup):
            await batches.run()
    assert [type(answer) for answer in answers] == [BrokerUnavailable, BrokerUnavailable]


async def test_one_entry_is_sent_at_once() -> None:
    service = Service()
    async with running(service) as batches:
        assert await batches.add("a") is None
    assert service.requests == [["a"]]


async def test_what_is_added_in_one_turn_of_the_loop_is_sent_in_tens() -> None:
    service = Service()
    async with running(service) as batches:
        await _add_all(batches, [f"e{number}" for number in range(25)])
    assert sorted(map(len, service.requests)) == [5, 10, 10]


async def test_what_comes_while_a_request_is_under_way_is_sent_together_after_it() -> None:
    service = Service()
    service.gate = anyio.Event()
    async with running(service) as batches, anyio.create_task_group() as tasks:
        tasks.start_soon(batches.add, "first")
        await anyio.wait_all_tasks_blocked()
        for entry in "abc":
            tasks.start_soon(batches.add, entry)
            await anyio.wait_all_tasks_blocked()
        assert service.requests == [["first"]]
        service.gate.set()
    assert service.requests == [["first"], ["a", "b", "c"]]


async def test_full_requests_are_sent_side_by_side_up_to_the_limit() -> None:
    service = Service()
    service.gate = anyio.Event()
    async with running(service, concurrency=2) as batches, anyio.create_task_group() as tasks:
        tasks.start_soon(_add_all, batches, [f"e{number}" for number in range(40)])
        await anyio.wait_all_tasks_blocked()
        assert len(service.requests) == 2
        service.gate.set()
    assert list(map(len, service.requests)) == [10, 10, 10, 10]


async def test_each_entry_is_told_its_own_answer() -> None:
    service = Service()
    service.failing["bad"] = {"Code": "A.B.ReceiptHandleIsInvalid", "SenderFault": True}
    answers: dict[str, Failure | None] = {}

    async def add(entry: str) -> None:
        answers[entry] = await batches.add(entry)

    async with running(service) as batches, anyio.create_task_group() as tasks:
        for entry in ("good", "bad", "forgotten"):
            tasks.start_soon(add, entry)
    assert answers["good"] is None
    bad, forgotten = answers["bad"], answers["forgotten"]
    assert bad is not None
    assert forgotten is not None
    assert (bad.code, bad.is_ours) == ("ReceiptHandleIsInvalid", True)
    assert not forgotten.is_ours, "an entry that the answer does not mention did not succeed"


async def test_a_request_that_fails_fails_all_of_its_entries_and_no_later_one() -> None:
    service = Service()
    service.error = BrokerUnavailable("no")
    async with running(service) as batches:
        with pytest.raises(BrokerUnavailable, match="no"):
            await batches.add("a")
        service.error = None
        assert await batches.add("b") is None


async def test_a_request_under_way_is_finished_when_the_stream_stops() -> None:
    service = Service()
    service.gate = anyio.Event()
    answers: list[Failure | None] = []
    batches: Batches[str] = Batches(service.send, concurrency=1)
    async with anyio.create_task_group() as waiting:

        async def add() -> None:
            answers.append(await batches.add("a"))

        waiting.start_soon(add)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batches.run)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            service.gate.set()
    assert answers == [None]


async def test_what_is_added_together_is_sent_in_tens_and_each_entry_has_its_answer() -> None:
    service = Service()
    service.failing["e7"] = {"Code": "Odd", "Message": "odd", "SenderFault": True}
    async with running(service) as batches:
        assert await batches.add_all([]) == []
        answers = await batches.add_all([f"e{number}" for number in range(25)])
    assert sorted(map(len, service.requests)) == [5, 10, 10]
    assert answers[7] == Failure("Odd", "odd (Odd)", True)
    assert answers[:7] + answers[8:] == [None] * 24


async def test_a_request_that_failed_is_the_answer_of_its_own_entries() -> None:
    service = Service()

    async def send(entries: Sequence[str]) -> Mapping[str, Any]:
        if "e3" in entries:
            raise BrokerUnavailable("away")
        return await Service.send(service, entries)

    service.send = send  # type: ignore[method-assign]
    async with running(service) as batches:
        answers = await batches.add_all([f"e{number}" for number in range(20)])
    assert [str(one) for one in answers[:10]] == ["away"] * 10
    assert answers[10:] == [None] * 10
