"""Joins entries, such as deletions, into batch requests. Each entry gets an answer of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Generic, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from producers.sqs.errors import describe_failure
from triggerer.errors import BrokerError, BrokerUnavailable

BATCH: Final = 10
"""The most entries that SQS takes in one request."""
_REQUEST_TIMEOUT_S: Final = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why SQS refused an entry."""

    code: str
    text: str
    is_ours: bool
    """True if the entry itself is wrong, so that a repeat would be refused too (SQS's `SenderFault`)."""


Answer: TypeAlias = Failure | BrokerError | None
"""The answer to one entry. None: the entry succeeded. A `BrokerError`: the whole request failed."""
RecordAnswers: TypeAlias = Callable[[Sequence[tuple[T, Answer]]], None]


class _Waiter(Generic[T]):
    """A caller that waits for the answers to all its entries."""

    __slots__ = ("_record_answers", "done", "left")

    def __init__(self, left: int, record_answers: RecordAnswers[T] | None) -> None:
        self.left = left
        self.done = anyio.Event()
        self._record_answers = record_answers

    def mark_done(self, pending: Sequence[_Pending[T]]) -> None:
        """Record that these entries are answered."""
        self.left -= len(pending)
        if self._record_answers is not None:
            self._record_answers([(one.entry, one.answer) for one in pending])
        if not self.left:
            self.done.set()


class _Pending(Generic[T]):
    __slots__ = ("answer", "entry", "waiter")

    def __init__(self, entry: T, waiter: _Waiter[T]) -> None:
        self.entry = entry
        self.answer: Answer = None
        self.waiter = waiter


def _waiter_of(pending: _Pending[T]) -> _Waiter[T]:
    return pending.waiter


class Batches(Generic[T]):
    """Sends entries in requests of up to ten.

    If no request is open, an entry is sent at once, even alone. While a request is open, further entries wait until ten
    of them fill a request, or until no request is open.

    Args:
        send: Sends one request, with the entries' indices as their ids. Returns SQS's answer.
        concurrency: The most requests at the same time.
    """

    def __init__(
        self,
        send: Callable[[Sequence[T]], Awaitable[Mapping[str, Any]]],
        *,
        concurrency: int,
    ) -> None:
        self._send = send
        self._concurrency = concurrency
        self._waiting: deque[_Pending[T]] = deque()
        self._under_way = 0
        self._has_changed = anyio.Event()

    async def add(self, entry: T) -> Failure | None:
        """Send an entry, together with other callers' entries. Return None on success, else why SQS refused the entry.

        Raises:
            BrokerError: The whole request failed.
        Cancellation: The entry may be sent anyway.
        """
        (answer,) = await self.add_all([entry])
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    async def add_all(
        self, entries: Sequence[T], record_answers: RecordAnswers[T] | None = None
    ) -> list[Answer]:
        """Send entries, together with other callers' entries, in as many requests as necessary.

        Args:
            record_answers: Called as soon as a request is answered, with this caller's entries in the request and the
                answers to these entries.
        Returns: The answers in the order of the entries; see `Answer`.
        Cancellation: The entries may be sent anyway.
        """
        if not entries:
            return []
        waiter = _Waiter(len(entries), record_answers)
        pending = [_Pending(entry, waiter) for entry in entries]
        self._waiting.extend(pending)
        self._has_changed.set()
        await waiter.done.wait()
        return [one.answer for one in pending]

    async def run(self) -> None:
        """Send the added entries until cancelled, and then wait for the open requests, which end within seconds."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._has_changed.wait()
                self._has_changed = anyio.Event()
                # Let entries that other callers add in the same tick of the event loop share the request.
                await checkpoint()
                while self._may_send:
                    count = min(BATCH, len(self._waiting))
                    batch = [self._waiting.popleft() for _ in range(count)]
                    self._under_way += 1
                    tasks.start_soon(self._request, batch)

    @property
    def _may_send(self) -> bool:
        waiting = len(self._waiting)
        if not waiting or self._under_way >= self._concurrency:
            return False
        return waiting >= BATCH or not self._under_way

    async def _request(self, batch: Sequence[_Pending[T]]) -> None:
        # After any other exception, the outcome of the request is unknown, and `run` ends the stream.
        error: BrokerError | None = BrokerUnavailable(
            "the request was given up at the end of the stream"
        )
        try:
            # Shield the request until its answer arrives, because the outcome of a cancelled request is unknown.
            with anyio.move_on_after(_REQUEST_TIMEOUT_S, shield=True) as scope:
                try:
                    self._record_answer(batch, await self._send([one.entry for one in batch]))
                    error = None
                except BrokerError as raised:
                    error = raised
            if scope.cancelled_caught:
                error = BrokerUnavailable(f"no answer to a request in {_REQUEST_TIMEOUT_S:g} s")
        finally:
            if error is not None:
                for pending in batch:
                    pending.answer = error
            self._under_way -= 1
            self._has_changed.set()
            for waiter, answered in groupby(batch, _waiter_of):
                waiter.mark_done(list(answered))

    def _record_answer(self, batch: Sequence[_Pending[T]], answer: Mapping[str, Any]) -> None:
        done = {entry["Id"] for entry in answer.get("Successful", ())}
        failed = {entry["Id"]: entry for entry in answer.get("Failed", ())}
        for index, pending in enumerate(batch):
            if str(index) in done:
                continue
            entry = failed.get(str(index), {"Message": "the answer does not mention it"})
            pending.answer = Failure(
                str(entry.get("Code", "")).rpartition(".")[2],
                describe_failure(entry),
                bool(entry.get("SenderFault", False)),
            )
