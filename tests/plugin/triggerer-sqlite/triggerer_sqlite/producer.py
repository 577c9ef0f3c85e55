"""Reads a queue. Renews the lease of each message in flight, and deletes a message once it is done."""

import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import anyio
from anyio import to_thread

from triggerer.abc import AdvanceItem, BrokerMessage, ReportAdvanced, SharedStreamProducer
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.connections import DeliverySettings, PositiveSeconds
from triggerer.pluginkit.delivery import Judgement, judge
from triggerer.pluginkit.dumping import dump_message, get_size, load_message
from triggerer.pluginkit.guarding import guarded
from triggerer_sqlite.table import Retry, Table

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings(DeliverySettings):
    """The keys of `[connections.<id>]`. The base class has `max_deliveries` and the delays between deliveries."""

    path: str
    lease_s: PositiveSeconds = 30.0
    poll_s: PositiveSeconds = 0.5


@dataclass(frozen=True, slots=True)
class Held:
    """The broker payload: one delivery of a message."""

    id: str
    failures: int
    message: BrokerMessage


def translate(error: BaseException, what: str) -> BrokerError:
    """Return triggerer's error for SQLite's. A locked file may be free later; other errors would come again."""
    is_busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
    kind = BrokerUnavailable if is_busy else BrokerRefused
    return kind(f"{what}: {error}")


async def ask(call: Callable[[], T], what: str) -> T:
    """Run a blocking call in a thread, with its errors translated."""
    return await guarded(
        to_thread.run_sync(call), what, translate=translate, catch=(sqlite3.Error, OSError)
    )


class SqliteQueueProducer(SharedStreamProducer):
    """Messages have no order, so each is a lane of its own."""

    lanes_advance_side_by_side = True

    def __init__(self, queue: str, settings: SqliteSettings) -> None:
        self._table = Table(settings.path, queue)
        self._settings = settings
        self._policy = settings.delivery_policy()
        self._holder = uuid.uuid4().hex
        """The holder of this producer's leases. The leases of a producer that died end after their time."""

    async def open_stream(self) -> AsyncIterator[tuple[BrokerMessage, Held]]:
        table, lease_s = self._table, self._settings.lease_s
        while True:
            rows = await ask(
                lambda: table.lease(self._holder, lease_s), f"receive from queue {table.queue}"
            )
            for row in rows:
                message = BrokerMessage(
                    row.body,
                    position={"queue": table.queue, "id": row.id},
                    published_at=datetime.fromtimestamp(row.published_at, UTC),
                    deliveries=row.failures + 1,
                )
                yield message, Held(row.id, row.failures, message)
            if not rows:
                await anyio.sleep(self._settings.poll_s)

    async def run(self) -> None:
        """Renew the leases at the same time as the poll, which waits while filters work."""
        table, lease_s = self._table, self._settings.lease_s
        while True:
            await anyio.sleep(lease_s / 3)
            await ask(
                lambda: table.renew(self._holder, lease_s), f"renew leases of queue {table.queue}"
            )

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await self._settle(batch)

    async def advance_lanes(
        self, batches: Sequence[Sequence[AdvanceItem]], report: ReportAdvanced = lambda _: None
    ) -> None:
        # One transaction settles all lanes together, so no lane is done before the others, and `report` is not needed.
        await self._settle([item for batch in batches for item in batch])

    async def _settle(self, items: Iterable[AdvanceItem]) -> None:
        done: list[str] = []
        dead: list[tuple[str, bytes, str]] = []
        retries: list[Retry] = []
        for held, outcome in items:
            judgement = judge(outcome)
            # A failure that does not blame the message is not counted.
            failures = held.failures + (1 if outcome.blames_event else 0)
            body = held.message.value or b""
            if judgement is Judgement.ACK:
                done.append(held.id)
            elif judgement is Judgement.REJECT:
                dead.append((held.id, body, "rejected"))
            elif outcome.blames_event and self._policy.is_exhausted(failures):
                dead.append((held.id, body, f"failed {failures} times"))
            else:
                retries.append(Retry(held.id, failures, self._policy.delay(max(failures, 1))))
        table = self._table
        await ask(
            lambda: table.settle(self._holder, done, dead, retries),
            f"settle messages of queue {table.queue}",
        )

    def get_advance_lane(self, broker_payload: Held) -> str:
        return broker_payload.id

    def get_idempotency_key(self, broker_payload: Held) -> str:
        # The id is random. If ids were numbers that begin at 1 in each new file, the key would also need the file's id.
        return f"sqlite/{self._table.queue}/{broker_payload.id}"

    def dead_letters_rejected(self, broker_payload: Held) -> bool:
        return True

    def get_size(self, broker_payload: Held) -> int:
        return get_size(broker_payload.message)

    def dump_event(self, event: BrokerMessage) -> bytes:
        return dump_message(event)

    def load_event(self, data: bytes) -> BrokerMessage:
        return load_message(data)

    async def dead_letter(self, event: BrokerMessage, reason: str) -> None:
        table, id_, body = self._table, event.position["id"], event.value or b""
        await ask(
            lambda: table.bury(id_, body, reason), f"add a dead letter of queue {table.queue}"
        )

    async def aclose(self) -> None:
        table = self._table
        await ask(lambda: table.release(self._holder), f"give back messages of queue {table.queue}")
