"""Acknowledges messages and gives them back, in as few requests as possible."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import anyio

from producers.pubsub.errors import failed_ids, guarded, is_permanent
from producers.pubsub.requests import split
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff

if TYPE_CHECKING:
    from google.pubsub_v1 import SubscriberAsyncClient

    from producers.pubsub.settings import PubSubSettings

logger = logging.getLogger(__name__)

_CALL_TIMEOUT_S: Final = 10.0
_AT_ONCE: Final = 4
"""Requests that are awaited at the same time. What is to be sent meanwhile goes into the next one together."""
_RETRY_FIRST_S: Final = 0.1
_RETRY_LONGEST_S: Final = 5.0


@dataclass(slots=True, eq=False)
class _Waiter:
    """Somebody who waits until the service has taken his ids."""

    left: int
    done: anyio.Event = field(default_factory=anyio.Event)
    error: BrokerError | None = None

    def note(self, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            self.done.set()


class Outgoing:
    """What is to be told to the service; `run` sends it.

    A request that failed is repeated with growing delays, for `ack_timeout_s` at most, and an id only while its lease
    lasts: afterwards its message comes again, and its idempotency key absorbs that.
    """

    def __init__(
        self, client: SubscriberAsyncClient, subscription: str, settings: PubSubSettings
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._timeout_s = settings.ack_timeout_s
        self._what = f"{{}} of {subscription} at {settings.where}"
        self._acks: dict[str, tuple[float, _Waiter | None]] = {}
        """By ack id, when its lease is over, and who waits."""
        self._nacks: dict[str, None] = {}
        self._has_work = anyio.Event()
        self._free = anyio.Semaphore(_AT_ONCE)
        self.error: BrokerError | None = None

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
        self._acks.update(zip(ack_ids, zip(ends, repeat(waiter), strict=False), strict=True))
        self._has_work.set()
        await waiter.done.wait()
        if waiter.error is not None:
            raise waiter.error

    def ack_nowait(self, ack_id: str, end: float) -> None:
        """Acknowledge it as soon as possible; nobody waits."""
        self._acks[ack_id] = (end, None)
        self._has_work.set()

    def nack_nowait(self, ack_ids: Sequence[str]) -> None:
        """Give them back as soon as possible. What cannot be given back comes again when its lease is over."""
        self._nacks.update(dict.fromkeys(ack_ids))
        self._has_work.set()

    async def run(self) -> None:
        """Send, until cancelled.

        Raises:
            BrokerError: See `ack`.
        """
        async with anyio.create_task_group() as tasks:
            while True:
                await self._has_work.wait()
                await self._free.acquire()
                # Those that were resolved in the same turn of the loop go together.
                await anyio.lowlevel.checkpoint()
                nacks, self._nacks = self._nacks, {}
                acks, self._acks = self._acks, {}
                self._has_work = anyio.Event()
                tasks.start_soon(self._send, acks, nacks)

    async def _send(
        self, acks: dict[str, tuple[float, _Waiter | None]], nacks: dict[str, None]
    ) -> None:
        try:
            for part in split(list(nacks)):
                await self.nack(part)
            parts = list(split(list(acks)))
            if len(parts) == 1:
                await self._acknowledge(acks)
                return
            for part in parts:
                await self._acknowledge({one: acks[one] for one in part})
        finally:
            self._free.release()

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

    async def _acknowledge(self, acks: dict[str, tuple[float, _Waiter | None]]) -> None:
        backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S)
        # The clock of the leases; an event loop may have another.
        give_up_at = time.monotonic() + self._timeout_s
        while acks:
            what = self._what.format(f"acknowledging {len(acks)} messages")
            try:
                await guarded(
                    self._client.acknowledge(
                        subscription=self._subscription,
                        ack_ids=list(acks),
                        retry=None,
                        timeout=_CALL_TIMEOUT_S,
                    ),
                    what,
                )
            except BrokerError as error:
                again = self._sort_out(error, acks)
            else:
                again = {}
            _note({one: acks[one] for one in acks if one not in again} if again else acks)
            acks = again
            if not acks:
                return
            now = time.monotonic()
            over = {one: acks.pop(one) for one, (end, _) in list(acks.items()) if end <= now}
            if over:
                logger.warning(
                    "%s: %d leases were over before; the messages come again", what, len(over)
                )
                _note(over)
            if acks and now >= give_up_at:
                self._fail(
                    acks,
                    BrokerUnavailable(f"{what}: not taken within {self._timeout_s:.0f} s"),
                )
            await anyio.sleep(backoff.next_delay())

    def _sort_out(
        self, error: BrokerError, acks: dict[str, tuple[float, _Waiter | None]]
    ) -> dict[str, tuple[float, _Waiter | None]]:
        """Those that are to be sent again."""
        cause = error.__cause__
        reasons = {} if cause is None else failed_ids(cause)
        if reasons:
            refused = [one for one in acks if reasons.get(one, "").startswith("PERMANENT")]
            if refused:
                logger.info(
                    "%d acknowledgements were refused for good; the messages come again, and their "
                    "idempotency keys absorb them: %s",
                    len(refused),
                    error,
                )
            all_again = cause is not None and not is_permanent(cause)
            return {
                one: waiter
                for one, waiter in acks.items()
                if reasons.get(one, "TRANSIENT" if all_again else "").startswith("TRANSIENT")
            }
        if isinstance(error, BrokerRefused):
            self._fail(acks, error)
        logger.debug("%s", error)
        return acks

    def _fail(self, acks: dict[str, tuple[float, _Waiter | None]], error: BrokerError) -> None:
        self.error = error
        for waiter in {waiter for _, waiter in acks.values() if waiter is not None}:
            waiter.error = error
            waiter.done.set()
        raise error


def _note(acks: Mapping[str, tuple[float, _Waiter | None]]) -> None:
    for waiter, count in Counter(map(itemgetter(1), acks.values())).items():
        if waiter is not None:
            waiter.note(count)
