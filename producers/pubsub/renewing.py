"""Extends leases in a separate thread, so that a filter that blocks the event loop delays no extension."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from threading import Condition, Event
from typing import Any, Final, Protocol

import grpc
from google.pubsub_v1 import ModifyAckDeadlineRequest

from producers.pubsub.errors import code_of, failed_ids, translate
from producers.pubsub.leases import Leases
from producers.pubsub.requests import split

logger = logging.getLogger(__name__)

_LONGEST_CALL_S: Final = 10.0


class Modifies(Protocol):
    """The SDK's blocking call that changes the ack deadlines of messages."""

    def __call__(self, request: ModifyAckDeadlineRequest, timeout: float) -> Any: ...


class Renewing:
    """Extends leases as they fall due.

    Args:
        open_call: Opens a connection, and returns the function that extends leases over it. Called in the thread at the
            first extension.
        on_lost: Called in the thread with the number of lost leases and the reason. Their messages come again.
        abort_call: Ends the extension that is under way, if there is one, and makes all later extensions fail.
    """

    def __init__(
        self,
        leases: Leases,
        subscription: str,
        *,
        open_call: Callable[[], Modifies],
        on_lost: Callable[[int, str], None],
        abort_call: Callable[[], None],
    ) -> None:
        self._leases = leases
        self._subscription = subscription
        self._open_call = open_call
        self._on_lost = on_lost
        self._abort_call = abort_call
        self._call: Modifies | None = None
        self._stopping = Event()
        self._changed = Condition()
        self._waits_until = math.inf
        """When the thread wakes without a notification."""
        self._failures = 0

    def mark_begun(self) -> None:
        """Wake the thread if a new lease is due before the end of the thread's wait."""
        at = self._leases.next_at()
        with self._changed:
            if at is not None and at < self._waits_until:
                self._changed.notify()

    def stop(self) -> None:
        self._stopping.set()
        self._abort_call()
        with self._changed:
            self._changed.notify()

    def run(self) -> None:
        """Extend leases as they fall due, until `stop`."""
        while not self._stopping.is_set():
            due = self._leases.take_due(time.monotonic())
            if due.given_up:
                self._on_lost(len(due.given_up), "in flight for longer than max_extension_s")
            for ack_ids in split(due.extend):
                if self._stopping.is_set():
                    return
                self._extend(ack_ids, due.deadline_s)
            self._wait()

    def _wait(self) -> None:
        with self._changed:
            # Read the next due time under the lock. Otherwise a lease could begin between the reading and the waiting,
            # and its notification would be lost.
            at = self._leases.next_at()
            if self._stopping.is_set():
                return
            self._waits_until = math.inf if at is None else at
            self._changed.wait(None if at is None else max(at - time.monotonic(), 0.0))
            self._waits_until = -math.inf

    def _extend(self, ack_ids: Sequence[str], deadline_s: int) -> None:
        if self._call is None:
            self._call = self._open_call()
        request = ModifyAckDeadlineRequest(
            subscription=self._subscription, ack_ids=ack_ids, ack_deadline_seconds=deadline_s
        )
        asked_at = time.monotonic()
        try:
            self._call(request, timeout=min(_LONGEST_CALL_S, deadline_s / 4))
        except grpc.RpcError as error:
            if not self._stopping.is_set():
                self._record_failure(error, ack_ids, deadline_s, asked_at)
        except ValueError:
            # The SDK raises ValueError for a closed channel, which is expected only while stopping.
            if not self._stopping.is_set():
                raise
        else:
            self._failures = 0
            self._leases.extended(ack_ids, asked_at, deadline_s)

    def _record_failure(
        self, error: grpc.RpcError, ack_ids: Sequence[str], deadline_s: int, asked_at: float
    ) -> None:
        reasons = failed_ids(error)
        if reasons:
            # With exactly-once delivery, the error names the ids that failed. All other ids were extended.
            lost = [one for one in ack_ids if reasons.get(one, "").startswith("PERMANENT")]
            again = [one for one in ack_ids if reasons.get(one, "").startswith("TRANSIENT")]
            self._leases.extended(set(ack_ids) - reasons.keys(), asked_at, deadline_s)
        elif code_of(error) is grpc.StatusCode.INVALID_ARGUMENT:
            # Pub/Sub refused the whole request, and does not name the ids that caused this. So extend none of these
            # leases again. Each lease ends, and its message comes again.
            lost, again = list(ack_ids), []
        else:
            lost, again = [], list(ack_ids)
        self._leases.lose(lost)
        self._leases.put_off(again, time.monotonic() + deadline_s / 16)
        if lost:
            self._on_lost(len(lost), "Pub/Sub has ended them")
        if again:
            self._failures += 1
            say = logger.warning if self._failures in (1, 10, 100) else logger.debug
            say("%s", translate(error, f"extending {len(again)} leases of {self._subscription}"))
