"""Serves a FIFO queue that follows the rules of Amazon SQS and survives a restart, on the test's event loop.

The other servers of these tests break the rules at a restart:

- moto loses all messages.
- ElasticMQ delivers a group's messages out of order: the messages that were in flight come last.
- ElasticMQ delivers further messages of a group while some of the group's messages are in flight.

Source: "Exactly-once processing", "Understanding how to use FIFO queue receive request attempts" and "FIFO delivery
logic" in the developer guide of Amazon SQS.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from aiohttp import web

from tests.services.brokers.sqs_proxy import Answer, refusal

_ATTEMPTS_S = 300.0


@dataclass(slots=True, eq=False)
class Message:
    """A message of the queue; `handle` and `invisible_until` belong to its newest delivery."""

    id: str
    body: str
    group: str
    number: int
    sent_at: float
    deliveries: int = 0
    handle: str = ""
    invisible_until: float = -math.inf

    @property
    def is_in_flight(self) -> bool:
        return self.invisible_until > time.monotonic()


@dataclass(slots=True)
class FifoDouble:
    """A queue that `open_fifo_double` serves. Its endpoint stays the same over `stop` and `start`."""

    visibility_s: int
    messages: list[Message] = field(default_factory=list)
    """The messages that are not deleted, in order."""
    handed_out: list[Message] = field(default_factory=list)
    """The message of each delivery, in order. A message that is redelivered occurs again."""
    deleted: list[str] = field(default_factory=list)
    """The bodies of deleted messages, in order."""
    endpoint: str = ""
    before_answer: Callable[[str], None] | None = None
    """Called with the name of each action, after it was performed and before it is answered."""
    _port: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _attempts: dict[str, tuple[float, list[tuple[Message, str]]]] = field(default_factory=dict)
    _runner: web.AppRunner | None = None
    _has_changed: anyio.Event = field(default_factory=anyio.Event)

    # The server

    async def start(self) -> None:
        """Serve the queue with its messages. The port stays the same over restarts."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port)
        await site.start()
        self._runner, self._port = runner, runner.addresses[0][1]
        self.endpoint = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Break all connections, and forget the attempt ids of polls, which are not stored."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        self._attempts.clear()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"{self.endpoint}/123456789012/ordered.fifo"

    @property
    def connection(self) -> dict[str, Any]:
        """Return the settings of a connection to this queue."""
        return {
            "region": "us-east-1",
            "endpoint_url": self.endpoint,
            "access_key_id": "test",
            "secret_access_key": "test",
        }

    async def _handle(self, request: web.Request) -> web.Response:
        action = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        status, answer = await self._answer(action, json.loads(await request.read()))
        if self.before_answer is not None:
            self.before_answer(action)
        return web.json_response(answer, status=status, content_type="application/x-amz-json-1.0")

    async def _answer(self, action: str, asked: dict[str, Any]) -> Answer:
        match action:
            case "GetQueueAttributes":
                attributes = {"FifoQueue": "true", "VisibilityTimeout": str(self.visibility_s)}
                return 200, {"Attributes": attributes}
            case "ReceiveMessage":
                return 200, {"Messages": await self._receive(asked)}
            case "DeleteMessageBatch":
                return 200, self._each(asked, self._delete)
            case "ChangeMessageVisibilityBatch":
                return 200, self._each(asked, self._change_visibility)
        return refusal("InvalidAction", action)

    # The queue

    def send(self, bodies: Sequence[str], *, group: str) -> None:
        for body in bodies:
            number = next(self._numbers)
            self.messages.append(Message(f"m-{number}", body, group, number, time.time()))
        self._note()

    def in_flight(self) -> list[str]:
        return [one.body for one in self.messages if one.is_in_flight]

    def _note(self) -> None:
        self._has_changed.set()
        self._has_changed = anyio.Event()

    async def _receive(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        visibility_s = asked.get("VisibilityTimeout", self.visibility_s)
        attempt = asked.get("ReceiveRequestAttemptId", "")
        ends_at = time.monotonic() + asked.get("WaitTimeSeconds", 0)
        found = self._of_attempt(attempt)
        while not found:
            found = self._visible(asked.get("MaxNumberOfMessages", 1))
            now = time.monotonic()
            if found or now >= ends_at:
                break
            again_at = min(
                (one.invisible_until for one in self.messages if one.is_in_flight), default=ends_at
            )
            with anyio.move_on_after(max(0.0, min(again_at, ends_at) - now)):
                await self._has_changed.wait()
        for message in found:
            message.deliveries += 1
            message.handle = f"{message.id}/{message.deliveries}"
            message.invisible_until = time.monotonic() + visibility_s
        self.handed_out += found
        if attempt:
            self._attempts[attempt] = (
                time.monotonic() + _ATTEMPTS_S,
                [(one, one.handle) for one in found],
            )
        return [_shown(message) for message in found]

    def _of_attempt(self, attempt: str) -> list[Message]:
        """Return the messages of the poll with this id, if all of them are still in flight."""
        until, given = self._attempts.get(attempt, (0.0, []))
        if until < time.monotonic():
            return []
        if any(
            one not in self.messages or one.handle != handle or not one.is_in_flight
            for one, handle in given
        ):
            return []
        return [one for one, _ in given]

    def _visible(self, count: int) -> list[Message]:
        """Return the next messages of groups with nothing in flight: all of one group, then all of the next group."""
        groups: dict[str, list[Message]] = {}
        for message in self.messages:
            groups.setdefault(message.group, []).append(message)
        free = [group for group in groups.values() if not any(one.is_in_flight for one in group)]
        return list(itertools.chain.from_iterable(free))[:count]

    def _each(
        self, asked: dict[str, Any], do: Callable[[Message, dict[str, Any]], None]
    ) -> dict[str, Any]:
        done, failed = [], []
        for entry in asked["Entries"]:
            message = self._find(entry["ReceiptHandle"])
            if message is None:
                code = "ReceiptHandleIsInvalid"
                failed.append(
                    {"Id": entry["Id"], "Code": code, "SenderFault": True, "Message": code}
                )
            else:
                do(message, entry)
                done.append({"Id": entry["Id"]})
        self._note()
        return {"Successful": done, "Failed": failed}

    def _find(self, handle: str) -> Message | None:
        """Return the message if the handle belongs to its newest delivery, and the message is still in flight."""
        for message in self.messages:
            if message.handle == handle and message.is_in_flight:
                return message
        return None

    def _delete(self, message: Message, _: dict[str, Any]) -> None:
        self.messages.remove(message)
        self.deleted.append(message.body)

    def _change_visibility(self, message: Message, entry: dict[str, Any]) -> None:
        message.invisible_until = time.monotonic() + entry["VisibilityTimeout"]


def _shown(message: Message) -> dict[str, Any]:
    return {
        "MessageId": message.id,
        "ReceiptHandle": message.handle,
        "Body": message.body,
        "Attributes": {
            "ApproximateReceiveCount": str(message.deliveries),
            "SentTimestamp": str(int(message.sent_at * 1000)),
            "MessageGroupId": message.group,
            "SequenceNumber": str(message.number),
        },
    }


@asynccontextmanager
async def open_fifo_double(*, visibility_s: int = 30) -> AsyncIterator[FifoDouble]:
    """Serve on the running event loop, on a free port of 127.0.0.1."""
    double = FifoDouble(visibility_s)
    await double.start()
    try:
        yield double
    finally:
        await double.stop()
