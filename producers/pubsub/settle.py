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
"""The protobuf class, which takes all ids at once; the library's own class adds one after the other."""

_CALL_TIMEOUT_S: Final = 10.0
_AT_ONCE: Final = 2
"""Requests that are awaited at the same time. What is to be sent meanwhile goes into the next one together."""
_MANY: Final = 250
"""So many ids do not wait for one of these to return, unless there are `_AT_MOST` of them."""
_AT_MOST: Final = 4
_RETRY_FIRST_S: Final = 0.1
_RETRY_LONGEST_S: Final = 5.0


@dataclass(slots=True, eq=False)
class _Waiter:
    """Somebody who waits until the service has taken his ids."""

    left: int
    done: anyio.Event = field(default_factory=anyio.Event)
    error: BrokerError | None = None

    def mark_done(self, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.done.set()


@dataclass(slots=True, eq=False)
class _Acks:
    """Ids that came together.

    Attributes:
        ends: When the lease of each is over.
        waiter: None: nobody waits.
    """

    ack_ids: Sequence[str]
    ends: Sequence[float]
    waiter: _Waiter | None

    def mark_done(self, count: int) -> None:
        """So many of them need no request any more."""
        if self.waiter is not None and count:
            self.waiter.mark_done(count)

    def part(self, start: int, end: int) -> _Acks:
        return _Acks(self.ack_ids[start:end], self.ends[start:end], self.waiter)


class Settler:
    """What is to be told to the service; `run` sends it.

    A request that failed is repeated with growing delays, for `ack_timeout_s` at most, and an id only while its lease
    lasts: afterwards its message comes again, and its idempotency key absorbs that. Where it goes on so, each message
    coming again and none being taken for `ack_timeout_s`, the stream ends too: it would never be done.
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
        """How many ids wait to be sent."""
        self._awaited = 0
        """How many requests have not returned."""
        self._may_go_on = anyio.Event()
        self.error: BrokerError | None = None
        self._untaken_since: float | None = None
        """Since when each request has failed."""

    async def ack(self, ack_ids: Sequence[str], ends: Sequence[float]) -> None:
        """Return when the service has taken them all, or will deliver again what it did not take.

        Args:
            ends: When the lease of each is over.
        Raises:
            BrokerUnavailable: The service took nothing for `ack_timeout_s`.
            BrokerRefused: It takes nothing from this account.
        """
        if self.error is not None:
            raise self.error
        waiter = _Waiter(len(ack_ids))
        self._add(_Acks(ack_ids, ends, waiter))
        await waiter.done.wait()
        if waiter.error is not None:
            raise waiter.error

    def ack_nowait(self, ack_id: str, end: float) -> None:
        """Acknowledge it as soon as possible; nobody waits."""
        self._add(_Acks([ack_id], [end], None))

    def _add(self, acks: _Acks) -> None:
        self._acks.append(acks)
        self._record_waiting(len(acks.ack_ids))

    def nack_nowait(self, ack_ids: Sequence[str]) -> None:
        """Give them back as soon as possible. What cannot be given back comes again when its lease is over."""
        self._nacks.update(dict.fromkeys(ack_ids))
        self._record_waiting(len(ack_ids))

    def _record_waiting(self, count: int) -> None:
        self._waiting += count
        if self._may_send:
            self._may_go_on.set()

    @property
    def _may_send(self) -> bool:
        at_once = _AT_ONCE if self._waiting < _MANY else _AT_MOST
        return bool(self._waiting) and self._awaited < at_once

    async def run(self) -> None:
        """Send, until cancelled.

        Raises:
            BrokerError: See `ack`.
        """
        async with anyio.create_task_group() as tasks:
            while True:
                await self._may_go_on.wait()
                # Those that were resolved in the same turn of the loop go together.
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
        """Give them back now; they fit into a request. What the service does not take is logged."""
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
            logger.info("they come again when their leases are over: %s", error)

    async def _acknowledge(self, acks: list[_Acks]) -> None:
        """They fit into a request."""
        backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S)
        # The clock of the leases; an event loop may have another.
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            ack_ids = _ids(acks)
            what = self._what.format(f"acknowledging {len(ack_ids)} messages")
            try:
                await guarded(self._call(ack_ids), what)
            except BrokerError as error:
                again = self._sort_out(error, ack_ids, acks, what)
            else:
                self._untaken_since = None
                for one in acks:
                    one.mark_done(len(one.ack_ids))
                return
            acks = _keep(acks, again)
            now = time.monotonic()
            leased = _leased(acks, now)
            over = len(_ids(acks)) - len(leased)
            if over:
                acks = _keep(acks, leased)
                logger.warning(
                    "%s: %d leases were over before; the messages come again", what, over
                )
            if not acks:
                return
            if now >= give_up_at:
                self._fail(
                    acks,
                    BrokerUnavailable(f"{what}: not taken within {self._timeout_s:.0f} s"),
                )
            # Meanwhile it keeps no other from being sent.
            self._awaited -= 1
            self._record_waiting(0)
            try:
                await anyio.sleep(backoff.next_delay())
            finally:
                self._awaited += 1

    def _call(self, ack_ids: Sequence[str]) -> Awaitable[None]:
        # The transport's own call: a fifth of the client's work in this one is what wraps it, for retries and the like.
        raw = _RawRequest(subscription=self._subscription, ack_ids=ack_ids)
        call: Awaitable[None] = self._acknowledge_call(
            AcknowledgeRequest.wrap(raw), timeout=_CALL_TIMEOUT_S, metadata=self._routing
        )
        return call

    def _sort_out(
        self, error: BrokerError, ack_ids: Sequence[str], acks: Sequence[_Acks], what: str
    ) -> Sequence[str]:
        """Those that are to be sent again.

        Raises:
            BrokerUnavailable: None was taken for `ack_timeout_s`.
            BrokerRefused: The service takes nothing from this account.
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
                self._untaken_since = None
            else:
                self._mark_untaken(acks, what, reasons[refused[0]] if refused else str(error))
            return again
        if isinstance(error, BrokerRefused):
            self._fail(acks, error)
        logger.debug("%s", error)
        self._mark_untaken(acks, what, str(error))
        return ack_ids

    def _mark_untaken(self, acks: Sequence[_Acks], what: str, why: str) -> None:
        now = time.monotonic()
        if self._untaken_since is None:
            self._untaken_since = now
        elif now - self._untaken_since >= self._timeout_s:
            error = BrokerUnavailable(
                f"{what}: not taken within {self._timeout_s:.0f} s, nor others: {why}",
                hint="if they come when leases are over, raise ack_deadline_s in the connection",
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
    """The ids whose leases last."""
    return [
        ack_id
        for one in acks
        for ack_id, end in zip(one.ack_ids, one.ends, strict=True)
        if end > now
    ]


def _keep(acks: Sequence[_Acks], ack_ids: Iterable[str]) -> list[_Acks]:
    """Those that are to be sent again; nobody waits for the others any more."""
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
    """What is to be sent, in parts that each fit into a request."""
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
