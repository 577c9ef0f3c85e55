"""A proxy in front of an SQS service. It records all requests, and a test may answer instead of the service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web


@dataclass(slots=True)
class Exchange:
    """One request and its answer; `status` is 0 until the answer. `signed_by` is the id of the access key."""

    action: str
    request: dict[str, Any]
    signed_by: str = ""
    status: int = 0
    answer: dict[str, Any] = field(default_factory=dict)


Answer = tuple[int, dict[str, Any]]
Before = Callable[[Exchange], Awaitable[Answer | None]]
"""Called before a request is forwarded; it returns an answer, or None to forward the request."""
After = Callable[[Exchange], Awaitable[None]]
"""Called with the service's answer, before it is passed on; may change it, or raise `Lost`."""


class Lost(Exception):
    """Raised by `After` to lose the answer: the proxy closes the connection without it."""


class SqsProxy:
    """A proxy that `open_sqs_proxy` serves. `exchanges` has all requests, in order."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self.endpoint = ""
        self.exchanges: list[Exchange] = []
        self.before: Before | None = None
        self.after: After | None = None
        self._upstream = upstream
        self._session = session

    def of(self, action: str) -> list[Exchange]:
        """Return the exchanges of one action so far."""
        return [one for one in self.exchanges if one.action == action]

    def deleted(self) -> set[str]:
        """Return the ids of the messages that were deleted according to the service's answers."""
        ids: dict[str, str] = {}
        found = set()
        for one in self.exchanges:
            for message in one.answer.get("Messages", ()):
                ids[message["ReceiptHandle"]] = message["MessageId"]
            if one.action == "DeleteMessageBatch":
                handles = {entry["Id"]: entry["ReceiptHandle"] for entry in one.request["Entries"]}
                found |= {ids[handles[entry["Id"]]] for entry in one.answer.get("Successful", ())}
        return found

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        action = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        signature = request.headers.get("Authorization", "")
        signed_by = signature.partition("Credential=")[2].partition("/")[0]
        exchange = Exchange(action, json.loads(body or b"{}"), signed_by)
        self.exchanges.append(exchange)
        answer = None if self.before is None else await self.before(exchange)
        if answer is None:
            headers = {
                name: value
                for name, value in request.headers.items()
                if name.lower() in ("x-amz-target", "content-type", "authorization", "x-amz-date")
            }
            async with self._session.post(
                self._upstream + request.path_qs, data=body, headers=headers
            ) as response:
                answer = response.status, json.loads(await response.read() or b"{}")
        exchange.status, exchange.answer = answer
        if self.after is not None:
            try:
                await self.after(exchange)
            except Lost:
                assert request.transport is not None
                request.transport.abort()
        return web.json_response(
            exchange.answer, status=exchange.status, content_type="application/x-amz-json-1.0"
        )


@asynccontextmanager
async def open_sqs_proxy(upstream: str) -> AsyncIterator[SqsProxy]:
    """Serve on the running event loop, on a free port of 127.0.0.1."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        proxy = SqsProxy(upstream, session)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            proxy.endpoint = "http://{}:{}".format(*runner.addresses[0][:2])
            yield proxy
        finally:
            await runner.cleanup()


def refusal(code: str, message: str = "", status: int = 400) -> Answer:
    """Return the answer of a service that refuses a request with this code."""
    return status, {"__type": f"com.amazonaws.sqs#{code}", "message": message or code}
