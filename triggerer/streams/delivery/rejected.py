"""Parks a message for each watcher that rejected it, if the producer does not dead-letter it (contract, rule 18)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from triggerer.abc import AdvanceOutcome, SharedStreamProducer
from triggerer.domain.events import WatcherRef
from triggerer.domain.text.storable import storable_text
from triggerer.domain.watchers.lane_positions import encode_lane
from triggerer.domain.watchers.parked import ParkedChange, SetAside
from triggerer.errors import LeaseLost, NotSetAside
from triggerer.observability.error_texts import error_text
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Decide, Entry, Nacks, Rejection
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.producer_answers import (
    dead_letters_rejected,
    dump_event,
    idempotency_key,
)

_log = structlog.get_logger(__name__)

_MOST_AHEAD: Final = 200
"""At most this many messages after a lane's head are examined. Those that were rejected are parked together with the
head.
"""
_MOST_KNOWN: Final = 10_000
"""The most parked messages that a group remembers in `_known`."""
_NO_REASON: Final = "the watcher's filter rejected it"


class Rejected:
    """Parks rejected messages that the producer does not dead-letter, so that they are not lost.

    A rejected message is stored for each watcher that rejected it, under the message's idempotency key. So a redelivery
    stores nothing new. The lane waits until the message is stored. If the message cannot be stored, it counts as failed
    for the watcher.

    Args:
        decide: Called first. A rejected message is parked only if this function lets it advance.
    """

    def __init__(self, state: GroupState, decide: Decide) -> None:
        self._state = state
        self._decide = decide
        self._known: dict[tuple[int, str], None] = {}
        """The watcher id and idempotency key of each message that this group has parked, the oldest first.

        If an earlier message of the lane fails, the broker redelivers the parked messages, perhaps many times. They
        must not be parked again, because an operator may have replayed or discarded them meanwhile.
        """

    def decide(self, entry: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
        """See `triggerer.streams.delivery.lane.Decide`. Synchronous."""
        decided = self._decide(entry, outcome)
        if decided is None or decided.failed or not decided.rejected or not self._is_possible:
            return decided
        if not self._begin(entry):
            is_set_aside = entry.nacks is not None and entry.nacks.is_set_aside
            return replace(decided, is_set_aside=True) if is_set_aside else decided
        self._look_ahead(entry)
        # If the store has answered already, decide again: the message may count as failed now.
        return None if entry.unresolved else self.decide(entry, entry.outcome())

    @property
    def _is_possible(self) -> bool:
        producer = self._state.producer
        return (
            self._state.parked is not None
            and producer is not None
            and type(producer).dump_event is not SharedStreamProducer.dump_event
        )

    def _look_ahead(self, entry: Entry) -> None:
        """Also park later rejected messages of the lane. Otherwise each of them would wait for its own transaction."""
        following = entry.next
        for _ in range(_MOST_AHEAD):
            if following is None or following.unresolved:
                return
            if following.nacks is not None:
                outcome = following.outcome()
                if outcome.rejected and not outcome.failed:
                    self._begin(following)
            following = following.next

    def _begin(self, entry: Entry) -> bool:
        """Park a message for the watchers that rejected it. Return False if this is not needed, or has been done."""
        nacks, producer = entry.nacks, self._state.producer
        assert producer is not None
        if nacks is None or nacks.is_set_aside or dead_letters_rejected(producer, entry.payload):
            return False
        rejections = [
            (member, rejection)
            for member, rejection in (nacks.rejected_by or {}).items()
            if rejection is not None and not nacks.has_refused(member)
        ]
        if not rejections:
            return False
        nacks.is_set_aside = True
        # The store may answer at once. The entry must not count as resolved until all rejections are submitted.
        entry.unresolved += 1
        for member, rejection in rejections:
            assert isinstance(member, Subscriber)
            self._submit(entry, nacks, member, rejection)
        entry.unresolved -= 1
        return True

    def _submit(self, entry: Entry, nacks: Nacks, member: Subscriber, rejection: Rejection) -> None:
        state, producer = self._state, self._state.producer
        assert producer is not None
        assert state.parked is not None
        try:
            data = dump_event(producer, rejection.event)
        except Exception as error:
            # The plugin failed. The message is not advanced, and the broker redelivers it.
            self._refuse(entry, nacks, member, error)
            return
        if data is None:
            return
        lane = self._lane_of(entry)
        what = SetAside(
            lane,
            self._key_of(entry, lane),
            data,
            0,
            storable_text(rejection.reason or _NO_REASON),
            None,
            state.now(),
        )
        for watcher in rejection.watchers:
            source = state.source_of(watcher)
            is_known = (watcher.watcher_id, what.key) in self._known
            if not is_known and source is not None and source.fence is not None:
                entry.unresolved += 1
                on_answer = self._answer_for(entry, nacks, member, watcher, what)
                state.submit_parked(ParkedChange(source.fence, watcher.watcher_id, what, on_answer))

    def _answer_for(
        self, entry: Entry, nacks: Nacks, member: Subscriber, watcher: WatcherRef, what: SetAside
    ) -> Callable[[Exception | None], None]:
        def on_answer(error: Exception | None) -> None:
            if isinstance(error, LeaseLost):
                # The group was closed, or another instance owns the stream. So this group advances nothing from now on,
                # and the broker redelivers the message.
                return
            if error is None:
                self._remember(watcher, what)
                _log.warning(
                    "a message was rejected and parked",
                    watcher=member.name,
                    watcher_id=watcher.watcher_id,
                    key=what.key,
                    reason=what.error,
                )
            else:
                self._refuse(entry, nacks, member, error)
            entry.unresolved -= 1
            lane = entry.lane
            if not entry.unresolved and lane is not None and lane.head is entry:
                self._state.lanes.queue(lane)
                self._state.progress.signal()

        return on_answer

    def _remember(self, watcher: WatcherRef, what: SetAside) -> None:
        self._known[watcher.watcher_id, what.key] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _refuse(self, entry: Entry, nacks: Nacks, member: Subscriber, error: Exception) -> None:
        """After a message could not be stored, count the message as failed for the watcher."""
        nacks.is_set_aside = False
        self._state.ledger.refuse(member, entry)
        if member.on_refused is not None:
            refusal = NotSetAside(
                f"a message that the watcher rejected is not stored, and is redelivered: {error_text(error)}"
            )
            refusal.__cause__ = error
            member.on_refused(refusal)

    def _lane_of(self, entry: Entry) -> str:
        assert entry.lane is not None
        key = entry.lane.key
        # If the lane's key is not JSON, store the key as text for people to read. A replay does not need the lane.
        return encode_lane(key) or f'"{storable_text(str(key))}"'

    def _key_of(self, entry: Entry, lane: str) -> str:
        state = self._state
        assert state.producer is not None
        key: str | None = None
        try:
            key = idempotency_key(state.producer, entry.payload)
        except Exception as error:
            _log.warning(
                "the key of a rejected message is unknown",
                lane=lane,
                error=error_text(error),
            )
        if key:
            return key
        if state.reads_log:
            return f"{lane}@{state.position_of(entry)}"
        # Without an idempotency key a redelivery counts as another message.
        return f"{lane}@{state.now().isoformat()}/{entry.seq}"
