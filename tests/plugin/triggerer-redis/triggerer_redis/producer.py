"""Reads Redis streams in order, and keeps the position in each stream in a consumer group.

The group's last delivered id is the position. All entries up to the position are done. The producer reads with XREAD
and not with XREADGROUP, so reading does not move the position. A reader that dies leaves no entries for another reader
to claim. The group's list of pending entries has only the entries that failed, with the number of failures. So
`XPENDING` shows which entry holds a stream up.

Redis gives a stream no identity: after `DEL`, a new stream with the old name looks like the old stream. Therefore the
producer adds a consumer with a random name to each new group, and this name is the stream's incarnation. `DEL` removes
the group and its consumer too. So another consumer's name shows that the stream was created again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import anyio

from triggerer.abc import AdvanceItem, BrokerMessage, SharedStreamProducer
from triggerer.errors import BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.delivery import Judgement, judge
from triggerer.pluginkit.dumping import dump_message, get_size, load_message
from triggerer_redis.entries import before, fields_of, id_of, make_message, number_of, parse_id
from triggerer_redis.settings import RedisSettings, ask, is_answer

_log = logging.getLogger(__name__)

_BATCH = 500
_BLOCK_S = 5.0
_CONSUMER = "triggerer"
_MARKER = "incarnation-"
_FAILURES_READ = 10_000


@dataclass(frozen=True, slots=True)
class Entry:
    """The broker payload. `reading` is the number of times that the stream was set back before this entry was read."""

    message: BrokerMessage
    reading: int

    @property
    def stream(self) -> str:
        return str(self.message.position["stream"])

    @property
    def id(self) -> str:
        return str(self.message.position["id"])


@dataclass(slots=True)
class _Lane:
    """A stream with its place of reading, and the failures of its entries by id."""

    stream: str
    incarnation: str
    read: str  # the next read begins after this id
    consumed: int | None  # the number of entries up to the position; None: Redis does not know it
    failures: dict[str, int] = field(default_factory=dict)
    reading: int = 0
    is_paused: bool = False
    not_before: float = 0.0  # no read before this instant of the event loop's clock


class RedisSharedStreamProducer(SharedStreamProducer):
    """A lane is a stream. A failed entry is read again after a delay, and the later entries of its stream wait for it.

    Args:
        group: The name of the consumer group that stores the position. Each stream has its own group of this name.
        start: Where a new group begins to read, "earliest" or "latest".
    """

    lanes_advance_side_by_side = True
    pauses_lanes = True

    def __init__(
        self,
        streams: Sequence[str],
        *,
        group: str,
        settings: RedisSettings,
        start: str = "earliest",
        value_field: str = "value",
    ) -> None:
        self._streams = streams
        self._group = group
        self._settings = settings
        self._start = "0" if start == "earliest" else "$"
        self._value_field = value_field
        self._policy = settings.delivery_policy()
        # The stubs of the client cannot tell bytes from text, because this depends on the client's options.
        self._client: Any = settings.connect()
        self._lanes: dict[str, _Lane] = {}
        self._paused: anyio.Event | None = None
        self._waiting: anyio.CancelScope | None = None

    async def open_stream(self) -> AsyncIterator[tuple[BrokerMessage, Entry]]:
        for stream in self._streams:
            self._lanes[stream] = await self._open_lane(stream)
        while True:
            await self._while_paused()
            readings = {lane.stream: lane.reading for lane in self._lanes.values()}
            for lane, entry_id, fields in await self._read_new():
                await self._while_paused()
                # During the waits the lane may have been set back or paused. Then it is read again from `read`.
                if lane.is_paused or lane.reading != readings[lane.stream]:
                    continue
                lane.read = entry_id
                deliveries = lane.failures.get(entry_id, 0) + 1
                message = self._message(lane.stream, lane.incarnation, entry_id, fields, deliveries)
                yield message, Entry(message, lane.reading)

    async def _while_paused(self) -> None:
        if self._paused is not None:
            await self._paused.wait()

    async def _open_lane(self, stream: str) -> _Lane:
        what = self._what(f"open stream {stream}")
        entries_read = 0 if self._start == "0" else None
        call = self._client.xgroup_create(
            stream, self._group, id=self._start, mkstream=True, entries_read=entries_read
        )
        try:
            await ask(call, what)
        except BrokerRefused as refused:
            if not is_answer(refused, "BUSYGROUP"):
                raise
        incarnation = await self._find_incarnation(stream)
        if incarnation is None:
            marker = f"{_MARKER}{uuid.uuid4().hex}"
            await ask(self._client.xgroup_createconsumer(stream, self._group, marker), what)
            incarnation = await self._find_incarnation(stream) or marker
        groups = await ask(self._client.xinfo_groups(stream), what)
        group = next((group for group in groups if group["name"].decode() == self._group), None)
        if group is None:
            raise BrokerUnavailable(f"{what}: it was deleted meanwhile")
        pending = await ask(
            self._client.xpending_range(stream, self._group, "-", "+", _FAILURES_READ), what
        )
        failures = {entry["message_id"].decode(): entry["times_delivered"] for entry in pending}
        position, consumed = group["last-delivered-id"].decode(), group.get("entries-read")
        trimmed = await self._find_trimmed(stream, position)
        if trimmed is not None and (consumed is None or trimmed > consumed):
            lost = "an unknown number" if consumed is None else trimmed - consumed
            _log.warning("%s of the entries of stream %s were deleted unread", lost, stream)
            consumed = None if consumed is None else trimmed
        return _Lane(stream, incarnation, position, consumed, failures)

    async def _find_trimmed(self, stream: str, position: str) -> int | None:
        """Return the number of entries ever deleted; None if none of them can come after `position`."""
        found = await ask(self._client.xinfo_stream(stream), self._what(f"look at stream {stream}"))
        trimmed = int(found.get("entries-added", 0)) - int(found["length"])
        first = found["first-entry"]
        # An empty stream still knows the last id that it gave.
        first_id = (first[0] if first else found["last-generated-id"]).decode()
        return trimmed if trimmed > 0 and parse_id(first_id) > parse_id(position) else None

    async def _find_incarnation(self, stream: str) -> str | None:
        """Return the incarnation, a consumer's name; None if the stream, the group or the consumer is missing."""
        call = self._client.xinfo_consumers(stream, self._group)
        try:
            consumers = await ask(call, self._what(f"look at stream {stream}"))
        except BrokerRefused as refused:
            if is_answer(refused, "NOGROUP", "no such key"):
                return None
            raise
        names = [consumer["name"].decode() for consumer in consumers]
        return min((name for name in names if name.startswith(_MARKER)), default=None)

    async def _require_incarnation(self, stream: str, incarnation: str) -> None:
        if await self._find_incarnation(stream) != incarnation:
            raise BrokerUnavailable(
                f"stream {stream} was deleted, or its group {self._group} was, while it was read"
            )

    async def _read_new(self) -> list[tuple[_Lane, str, dict[bytes, bytes]]]:
        """Wait for the next entries of all lanes that may be read now.

        Returns:
            The entries with their lanes; empty if none came in time, or if `_wake` ended the wait.
        """
        now = anyio.current_time()
        lanes = [lane for lane in self._lanes.values() if not lane.is_paused]
        delays = [lane.not_before - now for lane in lanes if lane.not_before > now]
        wait_s = min([_BLOCK_S, self._settings.answer_within_s / 2, *delays])
        ready = {lane.stream: lane.read for lane in lanes if lane.not_before <= now}
        found: Any = None
        with anyio.move_on_after(wait_s if not ready else None) as self._waiting:
            if ready:
                block_ms = max(1, round(wait_s * 1000))
                found = await ask(
                    self._client.xread(ready, count=_BATCH, block=block_ms), self._what("read")
                )
            else:
                await anyio.sleep_forever()
        self._waiting = None
        read = []
        for name, entries in _by_stream(found):
            lane = self._lanes[name.decode()]
            await self._require_incarnation(lane.stream, lane.incarnation)
            read += [(lane, entry_id.decode(), fields) for entry_id, fields in entries]
        return read

    def _wake(self) -> None:
        """Let the poll choose again which lanes it reads, and from which ids."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        lane = self._lanes[batch[0].broker_payload.stream]
        done: list[str] = []
        dead: list[tuple[BrokerMessage, str]] = []
        failed: str | None = None
        for entry, outcome in batch:
            if entry.reading != lane.reading:
                break  # the lane was set back after this entry was read, so the entry is read again
            judgement = judge(outcome)
            if judgement is Judgement.FAIL:
                # If no watcher failed at this very entry, its failure does not count.
                failures = lane.failures.get(entry.id, 0) + (1 if outcome.blames_event else 0)
                lane.failures[entry.id] = failures
                if not (outcome.blames_event and self._gives_up(failures)):
                    failed = entry.id
                    break
                dead.append((entry.message, f"failed {failures} times"))
            elif judgement is Judgement.REJECT and self._settings.dead_letters:
                dead.append((entry.message, "rejected"))
            done.append(entry.id)
        if done or failed:
            await self._tell(lane, done, dead, failed)

    def _gives_up(self, failures: int) -> bool:
        return self._settings.dead_letters and self._policy.is_exhausted(failures)

    async def _tell(
        self,
        lane: _Lane,
        done: list[str],
        dead: list[tuple[BrokerMessage, str]],
        failed: str | None,
    ) -> None:
        """Move the position, add the dead letters, and store the number of failures, in one transaction.

        If an entry has failed, also set the lane back to it, and delay the next read.
        """
        failed_before = [entry_id for entry_id in done if entry_id in lane.failures]
        transaction = self._client.pipeline(transaction=True)
        for message, reason in dead:
            transaction.xadd(_dead_letters(lane.stream), self._dead_letter_fields(message, reason))
        if done:
            # Redis computes the group's lag from `entries_read`. We need it to find entries that were deleted unread.
            consumed = None if lane.consumed is None else lane.consumed + len(done)
            transaction.xgroup_setid(lane.stream, self._group, done[-1], entries_read=consumed)
        if failed_before:
            transaction.xack(lane.stream, self._group, *failed_before)
        if failed and lane.failures[failed]:
            transaction.xclaim(
                lane.stream, self._group, _CONSUMER, 0, [failed],
                retrycount=lane.failures[failed], force=True, justid=True,
            )  # fmt: skip
        if len(transaction):
            await ask(transaction.execute(), self._what(f"advance stream {lane.stream}"))
        if lane.consumed is not None:
            lane.consumed += len(done)
        for entry_id in failed_before:
            del lane.failures[entry_id]
        if failed:
            delay_s = self._policy.delay(max(lane.failures[failed], 1))
            lane.read, lane.reading = before(failed), lane.reading + 1
            lane.not_before = anyio.current_time() + delay_s
            self._wake()

    def get_advance_lane(self, broker_payload: Entry) -> str:
        return broker_payload.stream

    def get_idempotency_key(self, broker_payload: Entry) -> str:
        incarnation = broker_payload.message.position["incarnation"]
        return f"redis/{broker_payload.stream}/{incarnation}/{broker_payload.id}"

    def dead_letters_rejected(self, broker_payload: Entry) -> bool:
        return self._settings.dead_letters

    def get_size(self, broker_payload: Entry) -> int:
        return get_size(broker_payload.message)

    def get_position(self, broker_payload: Entry) -> list[Any]:
        return [broker_payload.message.position["incarnation"], number_of(broker_payload.id)]

    async def read_lane(
        self, lane: Hashable, position: list[Any]
    ) -> AsyncIterator[tuple[BrokerMessage, Entry]]:
        stream = str(lane)
        incarnation, number = position
        now = await self._find_incarnation(stream)
        if now is None:
            raise BrokerUnavailable(self._what(f"stream {stream} is not there to be read again"))
        read = before(id_of(number))
        if now != incarnation:
            _log.warning("stream %s was created again; it is read from its beginning", stream)
            read = "0-0"
        if await self._find_trimmed(stream, read) is not None:
            _log.warning(
                "an unknown number of the entries of stream %s after %s were deleted", stream, read
            )
        block_ms = round(min(_BLOCK_S, self._settings.answer_within_s / 2) * 1000)
        what = self._what(f"read stream {stream} again")
        while True:
            found = await ask(
                self._client.xread({stream: read}, count=_BATCH, block=block_ms), what
            )
            if found:
                await self._require_incarnation(stream, now)
            for _, entries in _by_stream(found):
                for entry_id, fields in entries:
                    read = entry_id.decode()
                    message = self._message(stream, now, read, fields, None)
                    yield message, Entry(message, 0)

    async def find_positions(self, start: datetime | None) -> Mapping[Hashable, list[Any]]:
        positions: dict[Hashable, list[Any]] = {}
        first = "-" if start is None else str(max(0, round(start.timestamp() * 1000)))
        for stream in self._streams:
            what = self._what(f"find a time in stream {stream}")
            incarnation = (await self._open_lane(stream)).incarnation
            found = await ask(self._client.xrange(stream, first, "+", count=1), what)
            if found:
                number = number_of(found[0][0].decode())
            else:
                info = await ask(self._client.xinfo_stream(stream), what)
                number = number_of(info["last-generated-id"].decode()) + 1
            positions[stream] = [incarnation, number]
        return positions

    def dump_event(self, event: BrokerMessage) -> bytes:
        return dump_message(event)

    def load_event(self, data: bytes) -> BrokerMessage:
        return load_message(data)

    async def dead_letter(self, event: BrokerMessage, reason: str) -> None:
        stream = str(event.position["stream"])
        call = self._client.xadd(_dead_letters(stream), self._dead_letter_fields(event, reason))
        await ask(call, self._what(f"add to {_dead_letters(stream)}"))

    def _dead_letter_fields(self, message: BrokerMessage, reason: str) -> dict[Any, Any]:
        origin = {"triggerer-id": str(message.position["id"]), "triggerer-reason": reason}
        return fields_of(message, self._value_field) | origin

    async def pause(self) -> None:
        self._paused = anyio.Event()

    async def resume(self) -> None:
        if self._paused is not None:
            self._paused.set()
        self._paused = None

    async def pause_lane(self, lane: Hashable) -> None:
        self._lanes[str(lane)].is_paused = True

    async def resume_lane(self, lane: Hashable) -> None:
        self._lanes[str(lane)].is_paused = False
        self._wake()

    async def aclose(self) -> None:
        await self._client.aclose()

    def _message(
        self,
        stream: str,
        incarnation: str,
        entry_id: str,
        fields: dict[bytes, bytes],
        deliveries: int | None,
    ) -> BrokerMessage:
        return make_message(
            stream, incarnation, entry_id, fields,
            value_field=self._value_field, deliveries=deliveries,
        )  # fmt: skip

    def _what(self, what: str) -> str:
        return f"{what} at {self._settings.server}"


def _dead_letters(stream: str) -> str:
    return f"{stream}:dead-letters"


def _by_stream(found: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    return list(found or [])
