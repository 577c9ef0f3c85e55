"""Receives messages by a streaming pull, and opens it again when it ends."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import grpc
from google.pubsub_v1 import StreamingPullRequest, StreamingPullResponse

from producers.pubsub.errors import guarded
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff, is_worth_a_line

if TYPE_CHECKING:
    from google.pubsub_v1 import SubscriberAsyncClient

    from producers.pubsub.settings import PubSubSettings

logger = logging.getLogger(__name__)

_RETRY_FIRST_S: Final = 0.2
_RETRY_LONGEST_S: Final = 15.0
_SHORTEST_DELAY_S: Final = 0.05
"""The shortest pause before a stream is opened again. The backoff's pauses may be almost zero, and do not grow while
each stream receives a message before it ends.
"""
_STEADY_S: Final = 10.0
"""A stream that lasted this long counts as a success, even without a message."""
_DRAIN_S: Final = 2.0
"""How long a stop waits for messages that Pub/Sub has sent already."""
_END_TIMEOUT_S: Final = 1.0

Take = Callable[[Sequence[Any], int], None]


class Receiving:
    """The streaming pull of one subscription.

    Args:
        deadline_s: Returns the length of leases, in seconds. Called when the pull is opened.
        take: Called with the protobuf `ReceivedMessage`s of each answer, and the length of their
            leases in seconds.
        is_full: Called before each read. If it returns True, the next read waits for `signal_room`.
            Unread messages stay at Pub/Sub.
        make_room: Called when the pull is opened. Returns the pull's bounds, in messages and in bytes.
    """

    def __init__(
        self,
        client: SubscriberAsyncClient,
        subscription: str,
        settings: PubSubSettings,
        *,
        deadline_s: Callable[[], int],
        take: Take,
        is_full: Callable[[], bool],
        make_room: Callable[[], tuple[int, int]],
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._settings = settings
        self._deadline_s = deadline_s
        self._take = take
        self._is_full = is_full
        self._make_room = make_room
        # Send the same id with each reopened pull, so that the pull reaches the same backend of Pub/Sub.
        self._client_id = uuid.uuid4().hex
        self._what = f"stream of {subscription} at {settings.where}"
        self._room = anyio.Event()
        self._is_stopping = False
        self._is_reopening = False
        self._has_to_reopen = anyio.Event()
        self._call: Any = None
        self._scope: anyio.CancelScope | None = None
        self._opened_at = math.inf
        self._has_received = False

    def signal_room(self) -> None:
        """Continue reading: a message is no longer in flight."""
        self._room.set()

    def reopen(self) -> None:
        """Let `run` replace the open stream by a stream with new bounds (`make_room`). No message under way is lost."""
        self._is_reopening = True
        self._has_to_reopen.set()
        self._room.set()

    async def run(self) -> None:
        """Receive until cancelled; then end the stream, and receive the messages that were under way.

        Raises:
            BrokerRefused: There is no such subscription, or this account may not read it.
            BrokerUnavailable: Pub/Sub was unreachable for `unavailable_timeout_s`; before the first connection, for
                `connect_timeout_s`.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive)
            try:
                while True:
                    await self._has_to_reopen.wait()
                    self._has_to_reopen = anyio.Event()
                    await self._half_close()
            finally:
                self._is_stopping = True
                self._room.set()
                with anyio.move_on_after(_DRAIN_S, shield=True):
                    await self._half_close()

    async def _half_close(self) -> None:
        """Ask Pub/Sub to end the stream after the messages under way.

        If Pub/Sub does not end the stream, a deadline ends it after `_DRAIN_S`.
        """
        if self._scope is not None:
            self._scope.deadline = anyio.current_time() + _DRAIN_S
        if self._call is not None:
            with suppress(BrokerError, asyncio.InvalidStateError):
                # Errors are ignored, because Pub/Sub may end the stream at the same moment.
                await guarded(self._call.done_writing(), self._what)

    async def _receive(self) -> None:
        backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S)
        good_at = anyio.current_time()
        has_connected = False
        while True:
            self._opened_at = math.inf
            self._has_received = False
            error: BrokerError | None = None
            try:
                await self._read_stream()
            except BrokerRefused:
                raise
            except BrokerUnavailable as unavailable:
                error = unavailable
            if self._is_stopping:
                await anyio.lowlevel.checkpoint()
                return
            now = anyio.current_time()
            if self._has_received or now - self._opened_at >= _STEADY_S:
                has_connected = True
                good_at = now
                backoff.reset()
            elif error is None:
                # Pub/Sub ended the stream without an error.
                has_connected = True
                good_at = now
            if self._is_reopening:
                self._is_reopening = False
                continue
            limit = (
                self._settings.unavailable_timeout_s
                if has_connected
                else self._settings.connect_timeout_s
            )
            if error is not None and now - good_at >= limit:
                raise error
            delay = max(backoff.next_delay(), _SHORTEST_DELAY_S)
            say = logger.warning if error and is_worth_a_line(backoff.failures) else logger.debug
            say("%s: opened again in %.1f s: %s", self._what, delay, error or "Pub/Sub ended it")
            await anyio.sleep(delay)

    async def _read_stream(self) -> None:
        """Read until Pub/Sub ends the stream.

        The read is shielded, because a cancelled read would lose received messages. `_half_close` sets the shield's
        deadline.
        """
        deadline_s = self._deadline_s()
        with anyio.CancelScope(shield=True) as self._scope:
            if self._is_stopping:
                return
            call: Any = None
            try:
                opening: Awaitable[Any] = self._client.streaming_pull(retry=None, timeout=None)
                call = await guarded(opening, self._what)
                await guarded(call.write(self._first_request(deadline_s)), self._what)
                self._call = call
                # Count the stream's age from here, not from the beginning of the attempt. Otherwise a failed attempt
                # that took more than `_STEADY_S` would count as a success.
                self._opened_at = anyio.current_time()
                if self._is_ending():
                    # `_half_close` was called before the stream was open, and had no effect. So call it now.
                    await self._half_close()
                await self._read(call, deadline_s)
            finally:
                self._scope = self._call = None
                await self._end_call(call)

    def _first_request(self, deadline_s: int) -> StreamingPullRequest:
        # This stream gets the newest bounds, so earlier requests for new bounds are met.
        self._is_reopening = False
        max_messages, max_bytes = self._make_room()
        return StreamingPullRequest(
            subscription=self._subscription,
            stream_ack_deadline_seconds=deadline_s,
            client_id=self._client_id,
            max_outstanding_messages=max_messages,
            max_outstanding_bytes=max_bytes,
        )

    async def _read(self, call: Any, deadline_s: int) -> None:
        while True:
            while self._is_full() and not self._is_ending():
                self._room = anyio.Event()
                await self._room.wait()
            answer = await guarded(call.read(), self._what)
            if answer is grpc.aio.EOF:
                return
            self._has_received = True
            self._take(StreamingPullResponse.pb(answer).received_messages, deadline_s)

    def _is_ending(self) -> bool:
        return self._is_stopping or self._is_reopening

    async def _end_call(self, call: Any) -> None:
        if call is None or call.done():
            return
        call.cancel()
        with anyio.move_on_after(_END_TIMEOUT_S, shield=True):
            # Wait for the end of the call, because the library's own tasks end with it.
            await call.code()
