"""Polls one URL for all watchers of a shared stream."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from producers.http.errors import RequestRefused, TryLater, shown
from producers.http.fetching import Answer, Fetcher, Validators
from producers.http.memory import Delivery, Memory
from producers.http.reading import Page, Reader
from triggerer.abc import AdvanceItem, BrokerMessage, SharedStreamProducer, StreamState
from triggerer.pluginkit.delivery import DeliveryPolicy, Judgement, judge
from triggerer.pluginkit.dumping import dump_message, get_size, load_message

if TYPE_CHECKING:
    from producers.http.settings import HttpSettings

logger = logging.getLogger(__name__)

MOST_PAGES: Final = 100
"""The most pages to request in succession. Then failed items that are due are delivered again.

While `first="skip"` skips the present pages, the producer instead pauses for `poke_interval`.
"""
MOST_FAILED: Final = 1_000
"""While this many failed items wait for their redelivery, the producer does not poll."""
_OF_A_LOST_CURSOR: Final = frozenset({400, 404, 410, 422})
"""The status codes with which servers answer a cursor that they do not know, or that has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """The arguments that triggers of one stream share: the URL, and how to poll and read it."""

    url: str
    poke_interval: float
    items: str | None = None
    item_key: str | None = None
    cursor_path: str | None = None
    cursor_param: str | None = None
    first: Literal["all", "skip"] = "all"


class HttpSharedStreamProducer(SharedStreamProducer):
    """Yields the new items of a URL, with a `Delivery` as broker payload.

    - An HTTP server keeps no position. So the store keeps the settled items, the cursor for the next page, and the
      validators (`ETag`, `Last-Modified`).
    - A failed item is delivered again from memory, after growing delays and without a limit. After a restart, the item
      comes again only if the server still shows the item.
    """

    def __init__(self, polled: Polled, *, settings: HttpSettings, connection: str) -> None:
        self._polled = polled
        self._url = settings.url_of(polled.url)
        self._fetcher = Fetcher(settings)
        self._reader = Reader(polled.items, polled.item_key, polled.cursor_path)
        self._source = _source(connection, polled)
        self._policy = DeliveryPolicy(max_deliveries=None, redelivery_delay_s=1.0)
        self._state: StreamState | None = None
        self._memory = Memory.restore(self._source, None, is_document=polled.items is None)
        self._validators: Validators | None = None
        self._cursor: Any = None
        self._failed: dict[Delivery, float] = {}
        """The failed items, each with the time at which it is delivered again."""
        self._has_failed = anyio.Event()
        self._saved: Any = None
        self._is_ahead = False
        """True if the stored state comes from `state_after`, and so contains items that are not advanced yet."""
        self._has_advanced = anyio.Event()

    def use_state(self, state: StreamState) -> None:
        self._state = state
        is_document = self._polled.items is None
        self._memory = Memory.restore(self._source, state.value, is_document=is_document)
        self._validators, self._cursor = self._memory.validators, self._memory.cursor
        self._saved = state.value

    async def open_stream(self) -> AsyncIterator[tuple[BrokerMessage, Delivery]]:
        """Poll for as long as the stream lives.

        Raises:
            ConfigurationError, BrokerRefused, BrokerUnavailable: As `Fetcher.fetch` and `Reader.read`.
        """
        if not self._memory.has_begun:
            await self._begin()
        poll_at = 0.0
        while True:
            now = time.monotonic()
            for delivery in self._take_due(now):
                yield self._message(delivery), delivery
            if now < poll_at or len(self._failed) >= MOST_FAILED:
                await self._wait(poll_at)
                continue
            for _ in range(MOST_PAGES):
                new, delay = await self._poll()
                poll_at = time.monotonic() + delay
                for delivery in new:
                    yield self._message(delivery), delivery
                if delay:
                    break

    async def _begin(self) -> None:
        """Begin a stream that has no stored state: skip the present items if `first` says so."""
        if self._polled.first == "skip":
            await self._skip_all()
        self._memory.has_begun = True
        await self._save()

    async def _skip_all(self) -> None:
        """Skip all present pages, however many there are, because the first poll would deliver the remaining pages."""
        asked = 0
        while True:
            try:
                page, answer = await self._ask()
            except TryLater as error:
                await anyio.sleep(self._put_off(error))
                continue
            if page is None or not self._skip(page, answer):
                return
            asked += 1
            if asked % MOST_PAGES == 0:
                await anyio.sleep(self._polled.poke_interval)

    def _put_off(self, error: TryLater) -> float:
        """Return how many seconds to wait before the next request."""
        delay = max(self._polled.poke_interval, error.seconds)
        logger.warning("%s; the next request follows in %.0f s", error, delay)
        return delay

    def _skip(self, page: Page, answer: Answer) -> bool:
        """Skip a page; return whether another page follows."""
        has_more = self._advances(page) and self._memory.has_news(page.found)
        self._cursor = self._cursor if page.cursor is None else page.cursor
        self._memory.skip(page.found, answer.validators, self._cursor)
        self._validators = answer.validators
        return has_more

    async def _poll(self) -> tuple[list[Delivery], float]:
        """Request one page; return the new items, and the seconds until the next request (0: another page follows)."""
        interval = self._polled.poke_interval
        try:
            page, answer = await self._ask()
        except TryLater as error:
            return [], self._put_off(error)
        if page is None:
            return [], interval
        has_more = self._advances(page)
        self._cursor = self._cursor if page.cursor is None else page.cursor
        self._validators = answer.validators
        now = datetime.now(UTC)
        new = self._memory.take(page.found, answer.validators, self._cursor, now)
        for delivery in new:
            delivery.size = get_size(self._message(delivery))
        while self._is_ahead and self._memory.is_document and new:
            # Store the number of the new content before its event; see `Memory`.
            await self._has_advanced.wait()
        if not self._is_ahead:
            await self._save()
        return new, 0.0 if has_more and new else interval

    def _advances(self, page: Page) -> bool:
        return page.cursor is not None and page.cursor != self._cursor

    async def _ask(self) -> tuple[Page | None, Answer]:
        """Request one page; return it with its answer. The page is None if nothing has changed."""
        param = self._polled.cursor_param
        params = None if param is None or self._cursor is None else {param: self._cursor}
        try:
            answer = await self._fetcher.fetch(self._url, params=params, known=self._validators)
        except RequestRefused as error:
            if params is not None and error.status in _OF_A_LOST_CURSOR:
                error.hint = (
                    f"the request had the stored cursor as {param!r}: if the server no longer knows this cursor,"
                    " change poke_interval, and the watcher begins without a cursor"
                )
            raise
        if answer.is_empty:
            return Page(()), answer
        if answer.body is None:
            return None, answer
        return self._reader.read(answer.body, f"GET {shown(self._url)}"), answer

    async def _wait(self, poll_at: float) -> None:
        """Wait until the next poll is due, failed items are due, or an item fails."""
        until = min(self._failed.values(), default=poll_at)
        if len(self._failed) < MOST_FAILED:
            until = min(until, poll_at)
        with anyio.move_on_after(max(until - time.monotonic(), 0.0)):
            await self._has_failed.wait()
        self._has_failed = anyio.Event()

    def _take_due(self, now: float) -> list[Delivery]:
        """Return the failed items that are due, in the order of first delivery. They no longer wait."""
        taken = sorted(
            (one for one, due in self._failed.items() if due <= now), key=lambda one: one.number
        )
        for delivery in taken:
            del self._failed[delivery]
        return taken

    def _message(self, delivery: Delivery) -> BrokerMessage:
        found = delivery.found
        return BrokerMessage(
            found.value,
            position={"url": self._polled.url, "item_key": found.key},
            published_at=delivery.seen_at,
            deliveries=delivery.failures + 1,
        )

    def state_after(self, items: Sequence[AdvanceItem]) -> Any:
        self._is_ahead = True
        self._has_advanced = anyio.Event()
        return self._memory.dump_after(delivery for delivery, _ in items)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        self._is_ahead = False
        self._has_advanced.set()
        # Items with an equal number of failures get one delay, so that they come again together, in their order.
        delays: dict[int, float] = {}
        for delivery, outcome in batch:
            match judge(outcome):
                case Judgement.FAIL:
                    delivery.failures += 1
                    delay = delays.setdefault(
                        delivery.failures, self._policy.delay(delivery.failures)
                    )
                    self._failed[delivery] = time.monotonic() + delay
                    self._has_failed.set()
                case Judgement.REJECT:
                    logger.warning("an item of %s was rejected, and is skipped", shown(self._url))
                    self._memory.settle(delivery)
                case Judgement.ACK:
                    self._memory.settle(delivery)
        await self._save()

    async def _save(self) -> None:
        """Store the state if it has changed."""
        state = self._memory.dump()
        if self._state is None or state == self._saved:
            return
        self._saved = state
        await self._state.save(state)

    def get_idempotency_key(self, broker_payload: Delivery) -> str:
        return broker_payload.key

    def get_size(self, broker_payload: Delivery) -> int:
        return broker_payload.size

    def dump_event(self, event: BrokerMessage) -> bytes:
        return dump_message(event)

    def load_event(self, data: bytes) -> BrokerMessage:
        return load_message(data)

    async def aclose(self) -> None:
        await self._fetcher.aclose()


async def check_url(polled: Polled, *, settings: HttpSettings) -> None:
    """Request the URL once, and check that the answer can be read. The only deadline is the connection's `timeout_s`.

    Raises:
        ConfigurationError, BrokerRefused, BrokerUnavailable: As `open_stream`.
    """
    url = settings.url_of(polled.url)
    reader = Reader(polled.items, polled.item_key, polled.cursor_path)
    fetcher = Fetcher(settings)
    try:
        answer = await fetcher.fetch(url)
        if answer.body is not None:
            reader.read(answer.body, f"GET {shown(url)}")
    finally:
        with anyio.move_on_after(2.0, shield=True):
            await fetcher.aclose()


def _source(connection: str, polled: Polled) -> str:
    """Return the beginning of idempotency keys: a digest of the connection, the URL, `items` and `item_key`."""
    parts = [connection, polled.url, polled.items, polled.item_key]
    return "http/" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
