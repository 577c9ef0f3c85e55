"""Ledger and lanes against a model with a set of members for each event."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triggerer.abc import AdvanceItem
from triggerer.streams.delivery.lane import Entry, Lane
from triggerer.streams.delivery.lanes import Lanes
from triggerer.streams.delivery.ledger import Ledger, LedgerMember

pytestmark = pytest.mark.rule(
    "5: a message that one subscriber rejects and another fails counts as failed",
    "S1, S3, S5: ledger and lanes",
)

BOUND = 3
BOUND_BYTES = 100


SIZES = st.sampled_from([0, 0, 0, 1, 40, 50, 99, 100, 250])


@dataclass
class ModelEvent:
    lane: int
    size_bytes: int
    members: set[int]
    absent: int
    resolved: dict[int, str] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        return set(self.resolved) == self.members and not any(self.waiting.values())

    @property
    def outcome(self) -> tuple[int, int, int]:
        answers = [
            "failed" if who in self.refused else answer for who, answer in self.resolved.items()
        ]
        return (
            answers.count("acked"),
            answers.count("failed") + self.absent,
            answers.count("rejected"),
        )


class LedgerMachine(RuleBasedStateMachine):
    """Each rule of the state machine acts on the ledger and on a model. Both must agree on what may be advanced."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes(BOUND, BOUND_BYTES)
        self.full: set[int] = set()
        self.relieved: list[int] = []
        self.lanes.on_low_water = self._record_low_water
        self.ledger = Ledger(self.lanes)
        self.model: list[ModelEvent] = []
        self.members: dict[int, LedgerMember] = {}
        self.entries: dict[int, Entry] = {}
        self.opened: dict[int, int] = {}
        self.positions: dict[int, int] = {}
        self.absent: set[int] = set()
        self.resting: set[int] = set()
        self.pending: list[tuple[int, LedgerMember, int]] = []
        self.everybody: dict[int, LedgerMember] = {}
        self.advancing: list[tuple[Lane, list[AdvanceItem]]] = []
        self.advanced: dict[int, list[int]] = {}
        self.count = 0

    @rule(lane=st.integers(0, 2), size_bytes=SIZES, data=st.data())
    def broadcast(self, lane: int, size_bytes: int, data: st.DataObject) -> None:
        seq = self.ledger.next_seq
        before = self._outstanding_bytes(lane)
        self.ledger.broadcast_in_lane(seq, seq, lane, 0.0, size_bytes)
        self.entries[seq] = self.ledger.entries[-1]
        self.model.append(ModelEvent(lane, size_bytes, set(self.members), len(self.absent)))
        for who in sorted(self.resting):
            if data.draw(st.booleans()):
                self.resting.remove(who)
                self.positions[who] = seq
                self.ledger.mark_active(self.members[who], seq)
            else:
                self.model[seq].resolved[who] = "acked"
        if self._outstanding(lane) == BOUND or before < BOUND_BYTES <= before + size_bytes:
            assert self.lanes.newly_full is not None
            assert self.lanes.newly_full.key == lane
            self.full.add(lane)
        else:
            assert self.lanes.newly_full is None
        self.lanes.newly_full = None

    def _outstanding(self, lane: int) -> int:
        events = sum(1 for event in self.model if event.lane == lane)
        in_flight = sum(len(batch) for one, batch in self.advancing if one.key == lane)
        return events - len(self.advanced.get(lane, [])) + in_flight

    def _outstanding_bytes(self, lane: int) -> int:
        sizes = [event.size_bytes for event in self.model if event.lane == lane]
        in_flight = sum(len(batch) for one, batch in self.advancing if one.key == lane)
        return sum(sizes[len(self.advanced.get(lane, [])) - in_flight :])

    def _record_low_water(self, lane: Lane) -> None:
        assert isinstance(lane.key, int)
        assert lane.key not in self.lanes.full
        self.relieved.append(lane.key)

    @rule()
    def join(self) -> None:
        self.count += 1
        member = LedgerMember()
        self.ledger.join(member, was_absent=False)
        self.members[self.count] = self.everybody[self.count] = member
        self.positions[self.count] = self.ledger.next_seq

    @precondition(lambda self: self.members)
    @rule(data=st.data(), events=st.integers(0, 2), may_rest=st.booleans())
    def pull_and_derive(self, data: st.DataObject, events: int, may_rest: bool) -> None:
        who = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members[who]
        if who in self.resting:
            return
        self._move_past(who)
        if self.positions[who] == self.ledger.next_seq:
            if may_rest:
                self.resting.add(who)
                self.ledger.mark_idle(member)
                if data.draw(st.booleans()):
                    # The broadcast comes before the ready entries are read.
                    self.broadcast(0, data.draw(SIZES), data)
        else:
            seq = self.opened[who] = self.positions[who]
            for _ in range(events):
                self.entries[seq].unresolved += 1
                self.model[seq].waiting[who] = self.model[seq].waiting.get(who, 0) + 1
                self.pending.append((who, member, seq))

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def derive_more(self, data: st.DataObject) -> None:
        """Derive an event, perhaps from a message that was rejected or whose event was refused."""
        who = data.draw(st.sampled_from(sorted(self.opened)))
        seq = self.opened[who]
        self.entries[seq].unresolved += 1
        self.model[seq].waiting[who] = self.model[seq].waiting.get(who, 0) + 1
        self.pending.append((who, self.members[who], seq))

    def _move_past(self, who: int) -> None:
        seq = self.opened.pop(who, None)
        if seq is not None:
            self.positions[who] = seq + 1
            self.members[who].done = seq + 1
            self.model[seq].resolved.setdefault(who, "acked")

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.opened)))
        seq = self.opened[who]
        self.ledger.reject(self.members[who], self.entries[seq])
        self.model[seq].resolved.setdefault(who, "rejected")

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members.pop(who)
        self.resting.discard(who)
        opened = self.opened.pop(who, None)
        entry = None if opened is None else self.entries[opened]
        rejected = opened is not None and self.model[opened].resolved.get(who) == "rejected"
        if opened is not None and rejected and not self.entries[opened].is_in_flight:
            self.model[opened].resolved[who] = "failed"
        self.ledger.fail(member, entry)
        self.absent.add(who)
        for event in self.model:
            if who in event.members:
                event.resolved.setdefault(who, "failed")

    @precondition(lambda self: self.absent)
    @rule(data=st.data(), comes_back=st.booleans())
    def end_absence(self, data: st.DataObject, comes_back: bool) -> None:
        who = data.draw(st.sampled_from(sorted(self.absent)))
        self.absent.remove(who)
        if comes_back:
            self.count += 1
            member = LedgerMember()
            self.ledger.join(member, was_absent=True)
            self.members[self.count] = self.everybody[self.count] = member
            self.positions[self.count] = self.ledger.next_seq
        else:
            self.ledger.remove_absent()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members.pop(who)
        self.resting.discard(who)
        opened = self.opened.pop(who, None)
        self.ledger.leave(member, None if opened is None else self.entries[opened])
        if opened is not None:
            self.model[opened].resolved.setdefault(who, "acked")
        for event in self.model:
            if who in event.members:
                event.resolved.setdefault(who, "failed")

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), is_confirmed=st.booleans())
    def complete_one(self, data: st.DataObject, is_confirmed: bool) -> None:
        who, member, seq = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        entry = self.entries[seq]
        self.model[seq].waiting[who] -= 1
        if not is_confirmed:
            self.ledger.refuse(member, entry)
            self.model[seq].refused.add(who)
        entry.unresolved -= 1
        if not entry.unresolved and entry.lane is not None and entry.lane.head is entry:
            self.lanes.queue(entry.lane)

    @rule()
    def take(self) -> None:
        self.ledger.release_passed()
        if self.lanes.has_ready:
            self._mark_taken(*self.lanes.take())

    @rule(limit=st.integers(1, 4), limit_of_lane=st.integers(1, 3))
    def take_together(self, limit: int, limit_of_lane: int) -> None:
        self.ledger.release_passed()
        lanes, batches = self.lanes.take_together(limit, limit_of_lane)
        assert sum(map(len, batches[:-1])) < limit
        assert all(len(batch) <= limit_of_lane for batch in batches)
        for lane, batch in zip(lanes, batches, strict=True):
            self._mark_taken(lane, batch)

    def _mark_taken(self, lane: Lane, batch: list[AdvanceItem]) -> None:
        assert isinstance(lane.key, int)
        assert batch
        done = self.advanced.setdefault(lane.key, [])
        expected = [seq for seq, event in enumerate(self.model) if event.lane == lane.key]
        for item in batch:
            seq = item.broker_payload
            assert seq == expected[len(done)], "in event order, without a gap"
            assert self.model[seq].is_ready
            outcome = item.outcome
            assert (outcome.acked, outcome.failed, outcome.rejected) == self.model[seq].outcome
            done.append(seq)
        self.advancing.append((lane, batch))

    @precondition(lambda self: self.advancing)
    @rule()
    def finish(self) -> None:
        lane, _ = self.advancing.pop(0)
        assert isinstance(lane.key, int)
        self.lanes.finish(lane)
        is_low = (
            self._outstanding(lane.key) <= BOUND // 2
            and self._outstanding_bytes(lane.key) <= BOUND_BYTES // 2
        )
        if lane.key in self.full and is_low:
            self.full.remove(lane.key)
            assert self.relieved.pop() == lane.key
        assert not self.relieved, "once for each time that a lane was full"

    @invariant()
    def what_is_ready_is_queued(self) -> None:
        self.ledger.release_passed()
        busy = {lane.key for lane, _ in self.advancing}
        ready = False
        for lane in range(3):
            events = [seq for seq, event in enumerate(self.model) if event.lane == lane]
            done = len(self.advanced.get(lane, []))
            if lane not in busy and done < len(events) and self.model[events[done]].is_ready:
                ready = True
        assert self.lanes.has_ready == ready
        advanced = sum(map(len, self.advanced.values()))
        in_flight = sum(len(batch) for _, batch in self.advancing)
        assert self.lanes.outstanding == len(self.model) - advanced + in_flight
        assert self.lanes.outstanding == sum(lane.outstanding for lane in self.lanes)
        assert self.ledger.next_seq - self.ledger.base == len(self.ledger.events)
        assert set(self.lanes.full) == self.full
        assert all(self._outstanding(lane) == one.outstanding for lane, one in self._known())
        for lane, one in self._known():
            assert one.outstanding_bytes == self._outstanding_bytes(lane)
        assert self.lanes.outstanding_bytes == sum(map(self._outstanding_bytes, range(3)))

    def _known(self) -> list[tuple[int, Lane]]:
        return [(lane.key, lane) for lane in self.lanes if isinstance(lane.key, int)]


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
