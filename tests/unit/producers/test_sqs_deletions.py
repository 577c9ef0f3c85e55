"""Deleting several messages in one call: each deletion has its own result, and so has the call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from producers.sqs.deletions import Deletions
from producers.sqs.errors import Throttled
from producers.sqs.in_flight import InFlight
from producers.sqs.message import Delivery
from producers.sqs.queue import Queue
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable

QUEUE = Queue("http://q/orders", "orders", False, 30, None)


class Client:
    """Records the handles of each request; `failing` and `errors` let deletions or whole requests fail."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.failing: dict[str, Mapping[str, Any]] = {}
        self.errors: list[BrokerError | None] = []

    async def delete_message_batch(self, **request: Any) -> Mapping[str, Any]:
        entries = request["Entries"]
        handles = [entry["ReceiptHandle"] for entry in entries]
        self.requests.append(handles)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        answer: dict[str, list[Any]] = {"Successful": [], "Failed": []}
        for entry in entries:
            failed = self.failing.pop(entry["ReceiptHandle"], None)
            answer["Failed" if failed else "Successful"].append(
                {"Id": entry["Id"], **(failed or {})}
            )
        return answer


def take(in_flight: InFlight, count: int) -> list[Delivery]:
    raws = [{"MessageId": f"m{n}", "ReceiptHandle": f"h{n}", "Body": ""} for n in range(count)]
    return in_flight.take(raws, anyio.current_time())[0]


@asynccontextmanager
async def deletions(client: Client, in_flight: InFlight) -> AsyncIterator[Deletions]:
    made = Deletions(client, QUEUE, in_flight, unavailable_after_s=0.3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made
        tasks.cancel_scope.cancel()


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight(QUEUE, on_removed=lambda: None)


async def test_only_what_failed_is_asked_for_again(in_flight: InFlight) -> None:
    client = Client()
    client.failing["h3"] = {"Code": "InternalError", "Message": "odd", "SenderFault": False}
    delivery = take(in_flight, 25)
    async with deletions(client, in_flight) as made:
        await made.delete(delivery)
    assert sorted(map(len, client.requests)) == [1, 5, 10, 10]
    assert client.requests[-1] == ["h3"]
    assert len(in_flight) == 0


async def test_one_whose_handle_is_void_is_over_and_the_others_are_deleted(
    in_flight: InFlight,
) -> None:
    client = Client()
    client.failing["h1"] = {"Code": "ReceiptHandleIsInvalid", "SenderFault": True}
    delivery = take(in_flight, 3)
    async with deletions(client, in_flight) as made:
        await made.delete(delivery)
    assert client.requests == [["h0", "h1", "h2"]]
    # "m1" is done but was not deleted, so a new delivery of "m1" only needs deletion. "m0" and "m2" were deleted, so
    # their ids count as new messages.
    new, done = in_flight.take(
        [{"MessageId": f"m{n}", "ReceiptHandle": "x", "Body": ""} for n in range(3)], 0.0
    )
    assert [one.id for one in done] == ["m1"]
    assert [one.id for one in new] == ["m0", "m2"]


async def test_one_that_was_received_again_meanwhile_is_asked_for_by_its_new_handle_at_once(
    in_flight: InFlight,
) -> None:
    client = Client()
    delivery = take(in_flight, 2)
    plain = client.delete_message_batch

    async def receive_again(**request: Any) -> Mapping[str, Any]:
        answer = await plain(**request)
        if len(client.requests) == 1:
            in_flight.take([{"MessageId": "m1", "ReceiptHandle": "new", "Body": ""}], 0.0)
        return answer

    client.delete_message_batch = receive_again  # type: ignore[method-assign]
    async with deletions(client, in_flight) as made:
        await made.delete(delivery)
    assert client.requests == [["h0", "h1"], ["new"]]


async def test_a_refusal_of_one_request_is_raised_and_what_others_deleted_is_gone(
    in_flight: InFlight,
) -> None:
    client = Client()
    client.errors = [BrokerRefused("no right to delete")]
    delivery = take(in_flight, 20)
    async with deletions(client, in_flight) as made:
        with pytest.raises(BrokerRefused, match="no right"):
            await made.delete(delivery)
    assert len(client.requests) == 2
    assert len(in_flight) == 10


async def test_a_service_that_is_away_for_too_long_is_raised_and_one_that_throttles_is_not(
    in_flight: InFlight,
) -> None:
    client = Client()
    delivery = take(in_flight, 2)
    async with deletions(client, in_flight) as made:
        client.errors = [Throttled("slowly")] * 4
        with anyio.fail_after(10):
            await made.delete(delivery[:1])
        client.errors = [BrokerUnavailable("away")] * 40
        with anyio.fail_after(10), pytest.raises(BrokerUnavailable, match="away"):
            await made.delete(delivery[1:])
    assert len(in_flight) == 1
