"""The receivers of one shared stream, in the SDK's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from azure.servicebus import exceptions as sdk_errors

from producers.servicebus.entity import EntityPath
from producers.servicebus.errors import RequiresSessions, guarded
from producers.servicebus.in_flight import InFlight
from producers.servicebus.link import Link
from producers.servicebus.locks import SessionOver
from producers.servicebus.message import Delivery
from producers.servicebus.sdk import client as sdk
from producers.servicebus.sdk.calls import Calls
from triggerer.errors import BrokerError, BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff, is_worth_a_line

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusReceiver

    from producers.servicebus.settings import ServiceBusSettings

logger = logging.getLogger(__name__)

_OPEN_TIMEOUT_S = 20.0
_END_TIMEOUT_S = 5.0
# How long a receiver waits for a session before it sends the next request; the SDK's own default.
_NEXT_SESSION_WAIT_S = 60.0
_IDLE_WHILE_OTHERS_WAIT_S = 1.0


class Stream:
    """Runs the links of a queue or subscription, and opens their receivers again when they break.

    Runs in the SDK's thread; `hand_over` passes received messages to the event loop.

    Attributes:
        paused: Receive nothing for now.
    """

    def __init__(
        self,
        entity: EntityPath,
        settings: ServiceBusSettings,
        hand_over: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self.entity = entity
        self.what = f"stream of {entity.described} at {settings.host}"
        self.calls = Calls(self.what, entity, settings.request_timeout_s)
        self.in_flight = InFlight()
        self.paused = False
        self._settings = settings
        self._hand_over = hand_over
        self._in_flight_count = 0
        self._links: set[Link] = set()
        # The receivers of sessions share the delays after sessions that broke. Each accepted session starts another
        # receiver, whose own delays would begin short again.
        self._session_retries = _Retries(self)
        self._acceptors = 0
        self._waiting = 0
        self._delayed_sessions: dict[str, float] = {}
        self._paused_lanes: set[Hashable] = set()

    async def run(self) -> None:
        """Receive until cancelled.

        Raises:
            BrokerRefused: The entity does not exist, or this client is not allowed to read it.
            BrokerUnavailable: The first attempt to reach Service Bus failed. Or, later, all attempts failed for longer
                than `connect_timeout_s`; see `_Retries`.
        """
        client = sdk.Client(self._settings)
        try:
            try:
                async with anyio.create_task_group() as tasks:
                    first = await self._open_first(client)
                    if first is None:
                        self._begin_accepting(client, tasks)
                    else:
                        tasks.start_soon(self._keep_receiving, client, first)
                        for _ in range(1, self._settings.receivers):
                            tasks.start_soon(self._keep_receiving, client)
            except BaseExceptionGroup as group:
                raise _first_broker_error(group) from group
        finally:
            await client.aclose()

    async def _open_first(self, client: sdk.Client) -> ServiceBusReceiver | None:
        """Open the first receiver; None if Service Bus answers that the entity requires sessions.

        A failure ends the stream, so that its watchers show the error. The runtime opens the stream again after growing
        delays.
        """
        try:
            return await self._open(client)
        except RequiresSessions:
            return None

    # Without sessions

    async def _keep_receiving(
        self, client: sdk.Client, receiver: ServiceBusReceiver | None = None
    ) -> None:
        """Serve one link, with a new receiver after each failure.

        A message stays locked after the receiver that got it has failed. So the next receiver can
        settle the message.
        """
        retries = _Retries(self)
        link = Link(self, retries.record_success)
        self._links.add(link)
        try:
            while True:
                began = anyio.current_time()
                try:
                    if receiver is None:
                        receiver = await self._open(client)
                    await self._serve(link, receiver)
                except BrokerUnavailable as error:
                    receiver = None
                    link.drop_expired()
                    await retries.wait(error, began)
                    link.drop_expired()
        finally:
            self._retire(link)

    async def _serve(self, link: Link, receiver: ServiceBusReceiver) -> None:
        try:
            await link.serve(receiver)
        except BrokerError:
            raise
        except BaseException:
            # The stream or the session ends while the connection still works, so give the messages back.
            with anyio.move_on_after(_END_TIMEOUT_S, shield=True):
                try:
                    await link.let_go(receiver)
                except Exception as error:  # noqa: BLE001  (the locks expire)
                    logger.info("%s: messages were not given back: %r", self.what, error)
            raise
        finally:
            await sdk.close(receiver)

    def _retire(self, link: Link) -> None:
        self._links.discard(link)
        link.closed = True
        link.drop_all()

    # With sessions

    def _begin_accepting(self, client: sdk.Client, tasks: TaskGroup) -> None:
        """Start another receiver of sessions, unless one waits for a session or `max_sessions` receivers exist."""
        if not self._waiting and self._acceptors < self._settings.max_sessions:
            self._acceptors += 1
            self._waiting += 1
            tasks.start_soon(self._accept_sessions, client, tasks)

    async def _accept_sessions(self, client: sdk.Client, tasks: TaskGroup) -> None:
        """Wait for a session, serve it, and repeat.

        End after a session if another receiver already waits for the next session.
        """
        retries = _Retries(self)
        while True:
            began = anyio.current_time()
            try:
                receiver = await self._accept(client)
            except BrokerUnavailable as error:
                await retries.wait(error, began)
                continue
            retries.reset()
            if receiver is None:
                continue
            self._waiting -= 1
            self._begin_accepting(client, tasks)
            try:
                await self._serve_session(receiver)
            except BrokerUnavailable as error:
                await self._session_retries.wait(error, began)
            else:
                self._session_retries.reset()
            if self._waiting:
                self._acceptors -= 1
                return
            self._waiting += 1

    async def _accept(self, client: sdk.Client) -> ServiceBusReceiver | None:
        """Accept the next session with messages; None if no session had messages for `_NEXT_SESSION_WAIT_S`."""
        try:
            return await self._open(client, session=True)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, sdk_errors.OperationTimeoutError):
                return None
            raise

    async def _serve_session(self, receiver: ServiceBusReceiver) -> None:
        session_id = sdk.session_id_of(receiver)
        link = Link(self, self._session_retries.record_success, session_id=session_id)
        link.paused = ("session", session_id) in self._paused_lanes
        link.not_before = self._delayed_sessions.get(session_id, 0.0)
        self._links.add(link)
        try:
            await self._serve(link, receiver)
        except SessionOver as over:
            logger.debug("%s: session %r is closed: %s", self.what, session_id, over)
        finally:
            self._retire(link)

    def session_idle_s(self) -> float:
        """How long an empty session stays open: at most one second if no receiver is free for another session."""
        idle_s = self._settings.session_idle_s
        return idle_s if self._waiting else min(idle_s, _IDLE_WHILE_OTHERS_WAIT_S)

    def delay_session(self, session_id: str, delay_s: float) -> None:
        """Deliver no message of a session for `delay_s`. Has no effect if another stream accepts the session next."""
        now = anyio.current_time()
        for stale in [name for name, until in self._delayed_sessions.items() if until <= now]:
            del self._delayed_sessions[stale]
        self._delayed_sessions[session_id] = now + delay_s

    # Opening

    async def _open(self, client: sdk.Client, *, session: bool = False) -> ServiceBusReceiver:
        wait_s = _NEXT_SESSION_WAIT_S if session else None
        timeout_s = _OPEN_TIMEOUT_S + (wait_s or 0.0)
        receiver = client.receiver(self.entity, session=session, wait_s=wait_s)
        try:
            with anyio.fail_after(timeout_s):
                await guarded(sdk.open_receiver(receiver), self.what, self.entity)
        except TimeoutError as error:
            await sdk.close(receiver)
            raise BrokerUnavailable(f"{self.what}: no answer in {timeout_s:g} s") from error
        except BaseException:
            await sdk.close(receiver)
            raise
        return receiver

    @property
    def connect_timeout_s(self) -> float:
        return self._settings.connect_timeout_s

    # Called by links

    @property
    def room(self) -> int:
        """The number of further messages that may come."""
        return max(0, self._settings.max_in_flight - self._in_flight_count)

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self._in_flight_count += len(deliveries)
            self._hand_over(deliveries)

    def count_redelivered(self, count: int) -> None:
        self._in_flight_count += count

    def mark_settled(self, count: int) -> None:
        had_room = self.room > 0
        self._in_flight_count -= count
        if not had_room:
            for link in self._links:
                link.poke()

    # Called by the producer

    def set_paused(self, paused: bool) -> None:
        self.paused = paused
        for link in self._links:
            link.poke()

    def set_lane_paused(self, lane: Hashable, paused: bool) -> None:
        (self._paused_lanes.add if paused else self._paused_lanes.discard)(lane)
        for link in self._links:
            if link.session_id is not None and ("session", link.session_id) == lane:
                link.paused = paused
                link.poke()

    def find(self, sequence_number: int, key: str) -> Delivery | None:
        """Return a message that this stream has locked; None if there is none."""
        for link in list(self._links):
            locked = link.locks.find(sequence_number)
            if locked is not None and locked.delivery.key == key:
                return locked.delivery
        return None


class _Retries:
    """Waits between attempts, and raises when they have failed for too long."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._backoff = Backoff(first=0.5, longest=5.0)
        self._failing_since: float | None = None

    def record_success(self) -> None:
        """Record that a receiver works: it has waited for messages without an error.

        The delays continue to grow, because the receiver may break soon.
        """
        self._failing_since = None

    def reset(self) -> None:
        """Record that an attempt has ended without an error. The next delay is short again."""
        self._failing_since = None
        self._backoff.reset()

    async def wait(self, error: BrokerUnavailable, began: float) -> None:
        """Wait before the next attempt.

        Args:
            began: When the failed attempt began, by the loop's clock.
        Raises:
            BrokerUnavailable: `error`, if all attempts have failed for `connect_timeout_s`.
        """
        now = anyio.current_time()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > self._stream.connect_timeout_s:
            raise error
        delay = self._backoff.next_delay(now - began)
        if is_worth_a_line(self._backoff.failures):
            logger.warning("%s; trying again in %.1f s", error, delay)
        await anyio.sleep(delay)


def _first_broker_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in group.exceptions:
        found = _first_broker_error(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, Exception):
            return found
    return group
