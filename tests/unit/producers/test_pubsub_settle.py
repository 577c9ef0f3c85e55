"""Acknowledgements share requests, and each caller returns when its ids are accepted."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from google.api_core.exceptions import NotFound, ServiceUnavailable
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from producers.pubsub import settle as settle
from producers.pubsub.requests import MOST_IDS
from producers.pubsub.settings import PubSubSettings
from producers.pubsub.settle import Settler
from triggerer.errors import BrokerRefused

_Answer = Callable[[Sequence[str]], None]


def _take(_: Sequence[str]) -> None:
    pass


class Client:
    """Notes the ids of each request; `answer` may refuse it."""

    def __init__(self, answer: _Answer = _take) -> None:
        self.transport = self
        """The settler sends acknowledgements by the client's transport, which is this object itself."""
        self.requests: list[list[str]] = []
        self._answer = answer

    async def acknowledge(self, request: Any, **_: Any) -> None:
        self.requests.append(list(request.ack_ids))
        await anyio.lowlevel.checkpoint()
        self._answer(self.requests[-1])


@asynccontextmanager
async def sending(client: Client) -> AsyncIterator[Settler]:
    settings = PubSubSettings.from_mapping("test", {"emulator_host": "h:1", "project": "p"})
    one: Any = client
    out = Settler(one, "projects/p/subscriptions/s", settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(out.run)
        yield out
        tasks.cancel_scope.cancel()


async def ack(out: Settler, *ack_ids: str, leased_s: float = 60.0) -> None:
    with anyio.fail_after(5):
        await out.ack(ack_ids, [time.monotonic() + leased_s] * len(ack_ids))


def refusal(reasons: dict[str, str]) -> ServiceUnavailable:
    """Return the answer of an exactly-once subscription that refuses these ids."""
    detail = AnyMessage()
    detail.Pack(ErrorInfo(metadata=reasons))
    status = Status(details=[detail]).SerializeToString()
    metadata = [("grpc-status-details-bin", status)]
    response: Any = SimpleNamespace(trailing_metadata=lambda: metadata)
    return ServiceUnavailable("not all", response=response)


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_RETRY_FIRST_S", 0.001)


async def test_what_several_wait_for_goes_in_one_request() -> None:
    client = Client()
    async with sending(client) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(ack, out, "a", "b")
        tasks.start_soon(ack, out, "c")
    assert client.requests == [["a", "b", "c"]]


async def test_what_fits_into_no_request_is_divided_also_where_several_wait() -> None:
    client = Client()
    first = [f"a{number}" for number in range(MOST_IDS - 1)]
    second = [f"b{number}" for number in range(MOST_IDS + 3)]
    async with sending(client) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(ack, out, *first)
        tasks.start_soon(ack, out, *second)
    assert [len(one) for one in client.requests] == [MOST_IDS, MOST_IDS, 2]
    assert [one for request in client.requests for one in request] == [*first, *second]


async def test_an_id_that_is_sent_for_two_keeps_neither_waiting() -> None:
    client = Client()
    async with sending(client) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(ack, out, "a", "b")
        await anyio.lowlevel.checkpoint()
        # The message has come again with the same id, before the request was sent.
        out.ack_nowait("a", time.monotonic() + 60)
    assert set(client.requests[0]) == {"a", "b"}


async def test_only_what_may_be_taken_later_is_sent_again() -> None:
    def answer(ack_ids: Sequence[str]) -> None:
        if "b" in ack_ids:
            raise refusal({"b": "PERMANENT_FAILURE_INVALID_ACK_ID", "c": "TRANSIENT_FAILURE_OTHER"})

    client = Client(answer)
    async with sending(client) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(ack, out, "a", "b")
        tasks.start_soon(ack, out, "c")
        tasks.start_soon(ack, out, "d")
    # The answer does not name `a` and `d`, and the error of `c` may pass. Only `b` is refused for good.
    assert client.requests[0] == ["a", "b", "c", "d"]
    assert client.requests[1] == ["a", "c", "d"]


async def test_whoever_waits_for_what_is_refused_for_good_does_not_wait_for_a_repeat() -> None:
    is_done = anyio.Event()

    def answer(_: Sequence[str]) -> None:
        if not is_done.is_set():
            reasons = {"slow": "TRANSIENT_FAILURE_OTHER", "gone": "PERMANENT_FAILURE_OTHER"}
            raise refusal(reasons)

    client = Client(answer)
    async with sending(client) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(ack, out, "slow")
        await ack(out, "gone")
        is_done.set()
    assert client.requests[0] == ["gone", "slow"]
    assert client.requests[-1] == ["slow"]


async def test_an_id_is_not_sent_again_once_its_lease_is_over() -> None:
    def answer(_: Sequence[str]) -> None:
        raise ServiceUnavailable("away")

    client = Client(answer)
    async with sending(client) as out:
        # The lease is over, so the message comes again. `ack` raises nothing.
        await ack(out, "a", leased_s=0.0)
    assert client.requests == [["a"]]


async def test_all_who_wait_are_told_of_a_refusal() -> None:
    def answer(_: Sequence[str]) -> None:
        raise NotFound("no such subscription")

    client: Any = Client(answer)
    settings = PubSubSettings.from_mapping("test", {"emulator_host": "h:1", "project": "p"})
    out = Settler(client, "projects/p/subscriptions/s", settings)

    async def run() -> None:
        with pytest.RaisesGroup(BrokerRefused):
            await out.run()

    async def wait(ack_id: str) -> None:
        with pytest.raises(BrokerRefused, match="no such subscription"):
            await ack(out, ack_id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "a")
        tasks.start_soon(wait, "b")
        tasks.start_soon(run)


class _Slow(Client):
    """A client that answers only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = anyio.Event()

    async def acknowledge(self, request: Any, **_: Any) -> None:
        self.requests.append(list(request.ack_ids))
        await self.go_on.wait()


async def test_few_wait_for_a_request_to_return_and_many_do_not() -> None:
    client = _Slow()
    async with sending(client) as out, anyio.create_task_group() as tasks:
        for name in ("a", "b", "c", "d"):
            tasks.start_soon(ack, out, name)
            await anyio.wait_all_tasks_blocked()
        assert client.requests == [["a"], ["b"]]
        many = [str(number) for number in range(settle.MANY)]
        tasks.start_soon(partial(ack, out, *many))
        await anyio.wait_all_tasks_blocked()
        assert client.requests[2:] == [["c", "d", *many]]
        client.go_on.set()


async def test_requests_that_are_to_be_repeated_keep_no_other_from_being_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle.Backoff, "next_delay", lambda _: 60.0)

    def refuse(ack_ids: Sequence[str]) -> None:
        if ack_ids != ["well"]:
            raise ServiceUnavailable("away")

    client = Client(refuse)
    async with sending(client) as out, anyio.create_task_group() as tasks:
        for number in range(settle.AT_MOST):
            tasks.start_soon(out.ack, [f"{number}"], [time.monotonic() + 60])
            await anyio.wait_all_tasks_blocked()
        assert len(client.requests) == settle.AT_MOST
        await ack(out, "well")
        tasks.cancel_scope.cancel()
