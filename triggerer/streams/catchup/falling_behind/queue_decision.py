"""For a queue: decides whether a message is stored for a watcher that failed or missed it (contract, rule 18)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Final

import structlog

from triggerer.abc import AdvanceOutcome, SharedStreamProducer
from triggerer.backoff import Backoff
from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, encode_lane
from triggerer.domain.watchers.parked import ParkedChange, Passed, Stored
from triggerer.errors import ParkedFull
from triggerer.observability.error_texts import error_text
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.catchup.falling_behind.decision import FallingBehind
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.lane import Entry, Lane
from triggerer.streams.delivery.selection import is_wanted
from triggerer.streams.delivery.subscribers import Subscribers
from triggerer.streams.producer_answers import dump_event, idempotency_key
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)

_RETRY_FIRST_S: Final = 0.2
_RETRY_LONGEST_S: Final = 5.0


class _QueueDecision:
    """A message that is being stored for one watcher."""

    __slots__ = ("backlog", "change", "entry", "is_submitted")

    def __init__(self, entry: Entry, backlog: Backlog) -> None:
        self.entry = entry
        self.backlog = backlog
        self.change: ParkedChange | None = None
        self.is_submitted = True
        """Whether the store's answer is pending."""

    @property
    def has_passed(self) -> bool:
        """Whether the watcher has resolved the message meanwhile, so that it need not be stored or dead-lettered."""
        stored, change = self.backlog.stored_lane, self.change
        return (
            stored is not None
            and change is not None
            and isinstance(change.what, Stored)
            and change.what.key in stored.resolved_early
        )

    def finish(self) -> None:
        """End the storing without a stored message, as if the store had taken it."""
        assert self.change is not None
        self.change.on_done(None)


class FallingBehindInQueues(FallingBehind):
    """For a queue: decides the outcome of the message at a lane's head, as `FallingBehind` does for a log.

    A message that a watcher misses is stored for the watcher. Then the lane continues. From then on, each later message
    of the lane is stored for the watcher when the message reaches the lane's head. A message is not stored in these
    cases:

    - The watcher has read the message, and all events derived from it are durable.
    - The watcher's selector does not want the message.
    - `dump_event` returns None for the message.

    If a limit of the store is reached, the stream waits, or the producer dead-letters the message.
    """

    def __init__(self, state: GroupState, subscribers: Subscribers, random: Random) -> None:
        super().__init__(state, subscribers)
        self._random = random
        self._blocked: dict[_QueueDecision, None] = {}
        self._refused: set[int] = set()
        """The numbers of events that could not be stored. The broker redelivers them."""
        self._has_changed = AutoResetEvent()

    @property
    def _is_possible(self) -> bool:
        return True

    def _is_redelivered(self, entry: Entry, lane: Lane, position: Position) -> bool:
        return self._state.is_redelivered(entry, lane.key)

    def record_redelivery(self, lane: Lane) -> None:
        super().record_redelivery(lane)
        state = self._state
        if state.is_poll_waiting and lane.key in state.failed_in:
            # The poll has pulled one more message, and will broadcast it with the next event number. If the message is
            # in this lane, the broker redelivers it too.
            state.redelivered_before[lane.key] += 1

    def _decide(self, entry: Entry, outcome: AdvanceOutcome) -> AdvanceOutcome | None:
        state, lane = self._state, entry.lane
        assert lane is not None
        if entry.seq in self._refused:
            self._refused.discard(entry.seq)
            return outcome if outcome.failed else _failed(outcome, 1)
        backlogs = state.backlogs.by_lane.get(lane.key, {})
        failed, behind = dict[WatcherRef, Fence | None](), set[WatcherRef]()
        missing = list[Backlog]()
        has_read = False
        for backlog in backlogs.values():
            if state.source_of(backlog.watcher) is None:
                continue
            assert backlog.stored_lane is not None
            if entry.seq < max(backlog.position[1], backlog.stored_lane.decided_to):
                # The message's events are durable, or the group decided earlier whether to store the message. So the
                # watcher needs no further copy.
                has_read = True
            elif entry.seq < backlog.cursor[1]:
                has_read = True
                missing.append(backlog)
            elif not backlog.is_caught_up:
                behind.add(backlog.watcher)
                missing.append(backlog)
        for watcher in self._watchers_that_failed(entry):
            source, other = state.source_of(watcher), backlogs.get(watcher.watcher_id)
            if source is None:
                continue
            is_caught_up = other is None or (other.is_caught_up and entry.seq >= other.cursor[1])
            if is_caught_up and is_wanted(state.selectors.get(watcher.watcher_id), entry.event):
                failed[watcher] = source.fence
        acked = outcome.acked + outcome.rejected - self._passing(entry, behind)
        if failed and (
            not state.may_fall_behind
            or lane.key in self._unsuitable
            or (acked <= 0 and not has_read)
            or self._is_redelivered(entry, lane, [None, entry.seq])
        ):
            return self._redelivered(entry, outcome, missing)
        if not (failed or missing):
            return AdvanceOutcome(outcome.acked + outcome.failed, 0, outcome.rejected)
        if lane.key in self._unsuitable or self._is_redelivered(entry, lane, [None, entry.seq]):
            return self._redelivered(entry, outcome, missing)
        return self._store_for(entry, lane, failed, missing, outcome)

    def _redelivered(
        self, entry: Entry, outcome: AdvanceOutcome, missing: Sequence[Backlog]
    ) -> AdvanceOutcome:
        """Return an outcome that makes the broker redeliver the message.

        Nothing is stored for the watchers that are behind. So a subscriber that skipped the message for these watchers
        counts as failed, although it acked the message.
        """
        selectors = self._state.selectors
        missed_by = {
            backlog.watcher
            for backlog in missing
            if is_wanted(selectors.get(backlog.watcher.watcher_id), entry.event)
        }
        count = self._passing(entry, missed_by)
        return _failed(outcome, count if outcome.failed else max(count, 1))

    def _store_for(
        self,
        entry: Entry,
        lane: Lane,
        failed: Mapping[WatcherRef, Fence | None],
        missing: Sequence[Backlog],
        outcome: AdvanceOutcome,
    ) -> AdvanceOutcome | None:
        state = self._state
        # A selector is plugin code, so ask each watcher's selector only once for a message.
        wanting = [
            backlog
            for backlog in missing
            if is_wanted(state.selectors.get(backlog.watcher.watcher_id), entry.event)
        ]
        for backlog in missing:
            if backlog not in wanting:
                _mark_decided(backlog, entry)
        stored_as = encode_lane(lane.key)
        try:
            data = None if not (failed or wanting) else dump_event(self._producer, entry.event)
        except Exception as error:
            # The plugin failed. The message is redelivered to all, and the stream continues.
            _log.error(
                "a message cannot be stored for a watcher that is behind, and is redelivered to all",
                lane=stored_as,
                error=error_text(error),
            )
            return self._redelivered(entry, outcome, missing)
        everybody = AdvanceOutcome(outcome.acked + outcome.failed, 0, outcome.rejected)
        if data is None:
            for backlog in wanting:
                _mark_decided(backlog, entry)
            return everybody
        if stored_as is None or None in failed.values():
            self._unsuitable.add(lane.key)
            return self._redelivered(entry, outcome, missing)
        wanting += [
            self._fall_behind(watcher, lane.key, stored_as, failed[watcher], entry)
            for watcher in sorted(failed, key=_by_id)
        ]
        now = state.now()
        stored = Stored(stored_as, self._key_of(entry, stored_as, now), data, now)
        # The store may answer a submission at once. Count the message as unresolved until it is submitted for each
        # watcher, so that an early answer does not resolve it.
        entry.unresolved += 1
        for backlog in sorted(wanting, key=_by_watcher):
            self._submit(_QueueDecision(entry, backlog), stored)
        entry.unresolved -= 1
        return None if entry.unresolved else everybody

    def _fall_behind(
        self,
        watcher: WatcherRef,
        lane: Hashable,
        stored_as: str,
        fence: Fence | None,
        entry: Entry,
    ) -> Backlog:
        assert fence is not None
        state = self._state
        backlog = state.backlogs.find(lane, watcher.watcher_id)
        place: Position = [None, entry.seq]
        if backlog is None:
            backlog = Backlog(
                watcher,
                lane,
                stored_as,
                state.now(),
                fence,
                place,
                place,
                stored_lane=StoredLane(0),
            )
            state.backlogs.enter(backlog)
        else:
            # The watcher had caught up, and falls behind again.
            backlog.since = state.now()
            backlog.position = backlog.cursor = place
            backlog.failures = 0
            state.backlogs.leave_live(backlog)
        return backlog

    def _key_of(self, entry: Entry, stored_as: str, now: datetime) -> str:
        key: str | None = None
        try:
            key = idempotency_key(self._producer, entry.payload)
        except Exception as error:
            # The plugin failed. The message is stored anyway: a redelivery would only fail in the same way, for ever.
            _log.warning(
                "the key of a stored message is unknown",
                lane=stored_as,
                error=error_text(error),
            )
        # Without an idempotency key a redelivery counts as another message.
        return key or f"{stored_as}@{now.isoformat()}/{entry.seq}"

    @property
    def _producer(self) -> SharedStreamProducer:
        assert self._state.producer is not None
        return self._state.producer

    def _submit(self, decision: _QueueDecision, what: Stored) -> None:
        entry, backlog = decision.entry, decision.backlog
        stored = backlog.stored_lane
        assert stored is not None
        given_in = stored.begin_storing(entry.seq, what.key)
        entry.unresolved += 1

        def on_answer(error: Exception | None) -> None:
            if isinstance(error, ParkedFull) and not self._state.is_ending:
                self._block(decision, error)
                return
            self._release(decision)
            is_needless = stored.end_storing(what.key, given_in, is_stored=error is None)
            if error is not None:
                # The message was not stored. `_refused` makes the next `_decide` let the message fail, so that the
                # broker redelivers it. After a lost lease this has no effect, because the stream advances nothing.
                self._unsuitable.add(backlog.lane)
                self._refused.add(entry.seq)
            elif backlog.is_gone or backlog.stored_lane is not stored:
                self._mark_stored_late(backlog)
            elif is_needless:
                self._drop(backlog, stored, what.key)
            backlog.is_stored = True
            entry.unresolved -= 1
            lane = entry.lane
            if not entry.unresolved and lane is not None and lane.head is entry:
                self._state.lanes.queue(lane)
                self._state.progress.signal()
            self._state.backlogs.record_change(backlog)

        decision.change = ParkedChange(backlog.fence, backlog.watcher.watcher_id, what, on_answer)
        self._state.submit_parked(decision.change)

    def _drop(self, backlog: Backlog, stored: StoredLane, key: str) -> None:
        """Delete the row of a message that was resolved while the row was being stored."""

        def on_answer(_: Exception | None) -> None:
            # If the deletion was refused, the row is read later. Idempotency keys prevent repeated events.
            stored.mark_gone((key,))
            self._state.end_if_advanced(backlog)

        self._state.submit_parked(
            ParkedChange(backlog.fence, backlog.watcher.watcher_id, Passed((key,)), on_answer)
        )

    def _mark_stored_late(self, backlog: Backlog) -> None:
        """Let a reader find a message whose row was stored after the group or the backlog had ended."""
        backlogs = self._state.backlogs
        if not backlog.is_gone:
            assert backlog.stored_lane is not None
            backlog.stored_lane.restart_reading()
            # The watcher may have caught up without this message, so let it read the lane's messages again. Idempotency
            # keys prevent repeated events.
            backlogs.leave_live(backlog)
        elif self._state.source_of(backlog.watcher) is not None:
            other = backlogs.find(backlog.lane, backlog.watcher.watcher_id)
            if other is not None and other.stored_lane is not None:
                other.stored_lane.restart_reading()
                backlogs.leave_live(other)
                backlogs.record_change(other)
            elif other is None:
                backlog.position = backlog.cursor = [None, 0]
                backlog.stored_lane, backlog.is_gone = StoredLane(), False
                backlog.stored_lane.restart_reading()
                backlogs.enter(backlog)

    # At a bound

    def _block(self, decision: _QueueDecision, error: ParkedFull) -> None:
        decision.is_submitted = False
        self._blocked[decision] = None
        if decision.backlog.watcher not in self._state.blocked_by:
            _log.error(
                "the stream waits: the store has no room for a message of a watcher that is behind",
                watcher=self._state.name_of(decision.backlog.watcher),
                error=str(error),
            )
            self._state.blocked_by[decision.backlog.watcher] = error
            self._state.on_blocked()
        self._has_changed.set()

    def _release(self, decision: _QueueDecision) -> None:
        if self._blocked.pop(decision, decision) is None:
            blocked_by = {one.backlog.watcher for one in self._blocked}
            if decision.backlog.watcher not in blocked_by:
                self._state.blocked_by.pop(decision.backlog.watcher, None)
                self._state.on_blocked()
                self._state.progress.signal_room()

    async def run(self) -> None:
        """Try to store the blocked messages, or to dead-letter them, at growing delays. A task of the group.

        Cancellation: `run` is cancelled when the group ends. The broker redelivers the messages that were not stored.
        """
        backoff = Backoff(first=_RETRY_FIRST_S, longest=_RETRY_LONGEST_S, random=self._random)
        clock = self._state.clock
        while True:
            if not self._blocked:
                backoff.reset()
                await self._has_changed.wait()
            await clock.sleep_until(clock.monotonic() + backoff.next_delay())
            by_entry: dict[Entry, list[_QueueDecision]] = {}
            for decision in self._blocked:
                by_entry.setdefault(decision.entry, []).append(decision)
            for entry, decisions in by_entry.items():
                await self._retry(entry, [one for one in decisions if one in self._blocked])

    async def _retry(self, entry: Entry, decisions: Sequence[_QueueDecision]) -> None:
        """Try to store a blocked message for its watchers, or to dead-letter it once for all of them.

        If the store's answer for one of the watchers is pending, do nothing: the message may have to be dead-lettered
        for this watcher too. A broker such as Service Bus cannot dead-letter a message twice.

        Args:
            decisions: The blocked decisions about the message.
        """
        if entry.unresolved > len(decisions) or any(one.is_submitted for one in decisions):
            return
        needed = []
        for decision in decisions:
            is_watched = self._state.source_of(decision.backlog.watcher) is not None
            if is_watched and not decision.has_passed:
                needed.append(decision)
            else:
                # Nothing is left to store: the watcher was deleted, or has resolved the message.
                decision.finish()
        if not needed:
            return
        if await self._try_dead_letter(entry, [one.backlog.watcher for one in needed]):
            for decision in needed:
                decision.finish()
            return
        for decision in needed:
            decision.is_submitted = True
            assert decision.change is not None
            self._state.submit_parked(decision.change)

    async def _try_dead_letter(self, entry: Entry, watchers: Sequence[WatcherRef]) -> bool:
        producer = self._state.producer
        assert producer is not None
        if (
            not self._state.dead_letters_at_bound
            or type(producer).dead_letter is SharedStreamProducer.dead_letter
            or not self._state.may_act
        ):
            return False
        # Watchers that share a trigger have one name.
        names = ", ".join(dict.fromkeys(map(self._state.name_of, watchers)))
        ids = ", ".join(str(watcher.watcher_id) for watcher in watchers)
        reason = f"the store has no room for messages of {names} (watcher {ids})"
        try:
            with plugin_code(f"dead_letter() of {type(producer).__qualname__}"):
                await producer.dead_letter(entry.event, reason)
        except Exception as error:
            _log.warning("a message could not be dead-lettered", error=repr(error))
            return False
        _log.warning("a message was dead-lettered", watcher=names, reason=reason)
        return True


def _failed(outcome: AdvanceOutcome, count: int) -> AdvanceOutcome:
    """Return the outcome with `count` of its acks, and then of its rejections, turned into unread failures."""
    acked = min(count, outcome.acked)
    rejected = min(count - acked, outcome.rejected)
    return AdvanceOutcome(
        outcome.acked - acked,
        outcome.failed + acked + rejected,
        outcome.rejected - rejected,
        outcome.unread + acked + rejected,
    )


def _mark_decided(backlog: Backlog, entry: Entry) -> None:
    assert backlog.stored_lane is not None
    backlog.stored_lane.decided_to = max(backlog.stored_lane.decided_to, entry.seq + 1)


def _by_id(watcher: WatcherRef) -> int:
    return watcher.watcher_id


def _by_watcher(backlog: Backlog) -> int:
    return backlog.watcher.watcher_id
