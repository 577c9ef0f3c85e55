"""Acknowledges messages and gives them back, in as few requests as possible."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
from google.api_core.gapic_v1.routing_header import to_grpc_metadata
from google.pubsub_v1 import AcknowledgeRequest

from producers.pubsub.errors import failed_ids, guarded, is_permanent
from producers.pubsub.requests import split
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff

if TYPE_CHECKING:
    from google.pubsub_v1 import SubscriberAsyncClient

    from producers.pubsub.settings import PubSubSettings

logger = logging.getLogger(__name__)

_RawRequest: Final[Any] = AcknowledgeRequest.pb()
"""The protobuf class, which adds all ids at once; the library's own class adds them one by one."""

_CALL_TIMEOUT_S: Final = 10.0
_AT_ONCE: Final = 2
"""The usual number of concurrent requests. While this many are open, further ids wait and share the next request."""
MANY: Final = 250
"""This many waiting ids start another request at once, up to `AT_MOST` requests."""
AT_MOST: Final = 4
_RETRY_FIRST_S: Final = 0.1
_RETRY_LONGEST_S: Final = 5.0


@dataclass(slots=True, eq=False)
class _Waiter:
    """A caller that waits until Pub/Sub has accepted its ids."""

    left: int
    done: anyio.Event = field(default_factory=anyio.Event)
    error: BrokerError | None = None

    def mark_done(self, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.done.set()


@dataclass(slots=True, eq=False)
class _Acks:
    """Ack ids that were added together.

    Attributes:
        ends: When each id's lease ends.
        waiter: The caller that waits for Pub/Sub's answer; None: no caller waits.
    """

    ack_ids: Sequence[str]
    ends: Sequence[float]
    waiter: _Waiter | None

    def mark_done(self, count: int) -> None:
        """Record that `count` ids need no further request."""
        if self.waiter is not None and count:
            self.waiter.mark_done(count)

    def part(self, start: int, end: int) -> _Acks:
        return _Acks(self.ack_ids[start:end], self.ends[start:end], self.waiter)


class Settler:
    """Collects the ids of messages to acknowledge or to give back; `run` sends the requests to Pub/Sub.

    - A failed acknowledgement is repeated with growing delays while the message's lease lasts. If the lease ends first,
      the message comes again, and its idempotency key absorbs the repeat.
    - If all acknowledgements fail for `ack_timeout_s`, the stream ends with an error.
    - A failed request to give messages back is not repeated. The messages come again when their leases end.
    """

    def __init__(
        self, client: SubscriberAsyncClient, subscription: str, settings: PubSubSettings
    ) -> None:
        self._client = client
        self._acknowledge_call: Any = client.transport.acknowledge
        routing: Any = to_grpc_metadata
        self._routing = (routing((("subscription", subscription),)),)
        self._subscription = subscription
        self._timeout_s = settings.ack_timeout_s
        self._what = f"{{}} of {subscription} at {settings.where}"
        self._acks: list[_Acks] = []
        self._nacks: dict[str, None] = {}
        self._waiting = 0
        """The number of ids that wait for a request."""
        self._awaited = 0
        """The number of requests under way. A failed request that waits for its next attempt does not count."""
        self._may_go_on = anyio.Event()
        self.error: BrokerError | None = None
        self._stalled_since: float | None = None
        """The time of the first failure since the last request that succeeded; None: no request has failed since."""

    async def ack(self, ack_ids: Sequence[str], ends: Sequence[float]) -> None:
        """Acknowledge; return when Pub/Sub has accepted each id, or will deliver its message again.

        Args:
            ends: When each id's lease ends.
        Raises:
            BrokerUnavailable: Pub/Sub accepted nothing for `ack_timeout_s`.
            BrokerRefused: Pub/Sub accepts nothing from this account.
        """
        if self.error is not None:
            raise self.error
        waiter = _Waiter(len(ack_ids))
        self._add(_Acks(ack_ids, ends, waiter))
        await waiter.done.wait()
        if waiter.error is not None:
            raise waiter.error

    def ack_nowait(self, ack_id: str, end: float) -> None:
        """Acknowledge one id as soon as possible, without waiting."""
        self._add(_Acks([ack_id], [end], None))

    def _add(self, acks: _Acks) -> None:
        self._acks.append(acks)
        self._record_waiting(len(acks.ack_ids))

    def nack_nowait(self, ack_ids: Sequence[str]) -> None:
        """Give messages back as soon as possible. If that fails, they come again when their leases end."""
        self._nacks.update(dict.fromkeys(ack_ids))
        self._record_waiting(len(ack_ids))

    def _record_waiting(self, count: int) -> None:
        self._waiting += count
        if self._may_send:
            self._may_go_on.set()

    @property
    def _may_send(self) -> bool:
        at_once = _AT_ONCE if self._waiting < MANY else AT_MOST
        return bool(self._waiting) and self._awaited < at_once

    async def run(self) -> None:
        """Send acknowledgements and give messages back, until cancelled.

        Raises:
            BrokerError: See `ack`.
        """
        async with anyio.create_task_group() as tasks:
            while True:
                await self._may_go_on.wait()
                # Let ids that are added in the same tick of the event loop share the request.
                await anyio.lowlevel.checkpoint()
                nacks, self._nacks = self._nacks, {}
                acks, self._acks = self._acks, []
                self._waiting = 0
                self._awaited += 1
                self._may_go_on = anyio.Event()
                tasks.start_soon(self._send, acks, nacks)

    async def _send(self, acks: list[_Acks], nacks: dict[str, None]) -> None:
        try:
            for part in split(list(nacks)):
                await self.nack(part)
            for request in _requests(acks):
                await self._acknowledge(request)
        finally:
            self._awaited -= 1
            self._record_waiting(0)

    async def nack(self, ack_ids: Sequence[str]) -> None:
        """Give back ids that fit into one request. A failure is only logged."""
        try:
            await guarded(
                self._client.modify_ack_deadline(
                    subscription=self._subscription,
                    ack_ids=list(ack_ids),
                    ack_deadline_seconds=0,
                    retry=None,
                    timeout=_CALL_TIMEOUT_S,
                ),
                self._what.format(f"giving back {len(ack_ids)} messages"),
            )
        except BrokerError as error:
            logger.info("the messages come again when their leases end: %s", error)

    async def _acknowledge(self, acks: list[_Acks]) -> None:
        """Acknowledge ids that fit into one request, with repeats."""
        backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S)
        # Use the clock of the leases, which may differ from the event loop's clock.
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            ack_ids = _ids(acks)
            what = self._what.format(f"acknowledging {len(ack_ids)} messages")
            try:
                await guarded(self._call(ack_ids), what)
            except BrokerError as error:
                again = self._sort_out(error, ack_ids, acks, what)
            else:
                self._stalled_since = None
                for one in acks:
                    one.mark_done(len(one.ack_ids))
                return
            acks = _keep(acks, again)
            now = time.monotonic()
            leased = _leased(acks, now)
            over = len(_ids(acks)) - len(leased)
            if over:
                acks = _keep(acks, leased)
                logger.warning("%s: %d leases ended first; the messages come again", what, over)
            if not acks:
                return
            if now >= give_up_at:
                self._fail(
                    acks,
                    BrokerUnavailable(f"{what}: not accepted within {self._timeout_s:.0f} s"),
                )
            # Do not count this request as under way during the delay, so that others may be sent.
            self._awaited -= 1
            self._record_waiting(0)
            try:
                await anyio.sleep(backoff.next_delay())
            finally:
                self._awaited += 1

    def _call(self, ack_ids: Sequence[str]) -> Awaitable[None]:
        # Call the transport directly, because the client's wrapper would take a fifth of the call's time.
        raw = _RawRequest(subscription=self._subscription, ack_ids=ack_ids)
        call: Awaitable[None] = self._acknowledge_call(
            AcknowledgeRequest.wrap(raw), timeout=_CALL_TIMEOUT_S, metadata=self._routing
        )
        return call

    def _sort_out(
        self, error: BrokerError, ack_ids: Sequence[str], acks: Sequence[_Acks], what: str
    ) -> Sequence[str]:
        """Return the ids to send again after a failed request.

        Raises:
            BrokerUnavailable: Pub/Sub has accepted no id for `ack_timeout_s`.
            BrokerRefused: Pub/Sub accepts nothing from this account.
        """
        cause = error.__cause__
        reasons = {} if cause is None else failed_ids(cause)
        if reasons:
            refused = [one for one in ack_ids if reasons.get(one, "").startswith("PERMANENT")]
            if refused:
                logger.info(
                    "%d acknowledgements were refused for good; the messages come again, and their "
                    "idempotency keys absorb them: %s",
                    len(refused),
                    error,
                )
            all_again = cause is not None and not is_permanent(cause)
            default = "TRANSIENT" if all_again else ""
            again = [one for one in ack_ids if reasons.get(one, default).startswith("TRANSIENT")]
            if len(refused) + len(again) < len(ack_ids):
                self._stalled_since = None
            else:
                self._fail_if_stalled(acks, what, reasons[refused[0]] if refused else str(error))
            return again
        if isinstance(error, BrokerRefused):
            self._fail(acks, error)
        logger.debug("%s", error)
        self._fail_if_stalled(acks, what, str(error))
        return ack_ids

    def _fail_if_stalled(self, acks: Sequence[_Acks], what: str, why: str) -> None:
        now = time.monotonic()
        if self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since >= self._timeout_s:
            error = BrokerUnavailable(
                f"{what}: none was accepted within {self._timeout_s:.0f} s: {why}",
                hint="if acknowledgements come after their leases end, raise ack_deadline_s in the connection",
            )
            self._fail(acks, error)

    def _fail(self, acks: Sequence[_Acks], error: BrokerError) -> None:
        self.error = error
        for waiter in {one.waiter for one in acks if one.waiter is not None}:
            waiter.error = error
            waiter.done.set()
        raise error


def _ids(acks: Sequence[_Acks]) -> Sequence[str]:
    return acks[0].ack_ids if len(acks) == 1 else [one for part in acks for one in part.ack_ids]


def _leased(acks: Sequence[_Acks], now: float) -> list[str]:
    """Return the ids whose leases have not ended."""
    return [
        ack_id
        for one in acks
        for ack_id, end in zip(one.ack_ids, one.ends, strict=True)
        if end > now
    ]


def _keep(acks: Sequence[_Acks], ack_ids: Iterable[str]) -> list[_Acks]:
    """Return the acks reduced to `ack_ids`, which are sent again. Mark all other ids as done for their callers."""
    again = set(ack_ids)
    kept: list[_Acks] = []
    for one in acks:
        places = [place for place, ack_id in enumerate(one.ack_ids) if ack_id in again]
        one.mark_done(len(one.ack_ids) - len(places))
        if places:
            kept.append(
                _Acks(
                    [one.ack_ids[place] for place in places],
                    [one.ends[place] for place in places],
                    one.waiter,
                )
            )
    return kept


def _requests(acks: list[_Acks]) -> Iterator[list[_Acks]]:
    """Yield the acks in parts that each fit into one request."""
    sizes = [len(part) for part in split(_ids(acks))] if acks else []
    if len(sizes) < 2:
        if acks:
            yield acks
        return
    waiting = iter(acks)
    current, start = next(waiting), 0
    for size in sizes:
        request: list[_Acks] = []
        while size:
            if start == len(current.ack_ids):
                current, start = next(waiting), 0
            part = current.part(start, start + size)
            request.append(part)
            start += len(part.ack_ids)
            size -= len(part.ack_ids)
        yield request
