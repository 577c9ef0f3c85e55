"""Bugs in membership: which subscribers answer for an event, and which events a filter gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import anyio

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.streams.delivery.fan_out import FanOut
from triggerer.streams.delivery.flow import Flow
from triggerer.streams.delivery.group import Group
from triggerer.streams.delivery.ledger import IDLE, Ledger, LedgerMember
from triggerer.streams.delivery.selection import Selecting, _Table
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.supervision.member import Member
from triggerer.streams.supervision.stream import SharedStream


@mutation(rules="S2/S7|S5", seed=14, quick=True)
def a_busy_filter_misses_selected_events() -> Replacements:
    """A filter gets a selected event only if the filter waits at that moment."""
    right = Subscriber.offer

    def offer(self: Subscriber, seq: int) -> None:
        if self.done == IDLE:
            right(self, seq)

    yield right, offer


@mutation(rules="S3|S2/S7", seed=4, quick=True)
def a_sibling_misses_the_restart_cohort() -> Replacements:
    """The first member opens the stream, and its siblings join when they get their turn."""
    right_serve_all, right_serve = SharedStream._serve_all, SharedStream._serve
    right_until_left, right_join = SharedStream._run_until_left, Member.join
    starting: set[Group] = set()

    async def serve_all(self: SharedStream, group: Group) -> Any:
        starting.add(group)
        return await right_serve_all(self, group)

    async def run_until_left(self: SharedStream, group: Group) -> Any:
        starting.discard(group)
        return await right_until_left(self, group)

    def join(self: Member, group: Group) -> bool:
        if group in starting and len(group.subscribers):
            return False
        return right_join(self, group)

    async def serve(self: SharedStream, member: Member, group: Group) -> None:
        if member.subscriber is None and not member.is_absent and not group.is_ending:
            await anyio.sleep(0.01)
            right_join(member, group)
        await right_serve(self, member, group)

    yield right_serve_all, serve_all
    yield right_until_left, run_until_left
    yield right_join, join
    yield right_serve, serve


@mutation(rules="S3|S2/S7", seed=1, quick=True)
def a_watcher_in_back_off_misses_messages_that_its_sibling_commits() -> Replacements:
    """While a watcher's failed filter waits for its restart, the broker advances without the watcher."""

    def fail_in(self: Member, group: Group, subscriber: Subscriber, error: Exception) -> None:
        self.is_absent = not subscriber.is_present
        if subscriber.is_present:
            group.subscribers.fail(subscriber, error)
            group.subscribers.remove_absent(self.source.watchers)

    yield Member._fail_in, fail_in


@mutation(rules="S2/S7", seed=32, quick=True)
def shutdown_counts_as_handled() -> Replacements:
    """An orderly stop unsubscribes the filters, so their open messages count as accepted."""
    right = SharedStream.drain

    async def drain(self: SharedStream) -> None:
        if self.group is not None and not self.group.is_ending:
            self.group.stop_pulling()
            for subscriber in list(self.group.subscribers):
                self.group.subscribers.leave(subscriber)
        await right(self)

    yield right, drain


@mutation(rules="S5", seed=20, quick=True)
def the_fast_path_drops_an_event_while_it_checks_its_readers() -> Replacements:
    """Each time the fast path's poll checks for slow readers, it loses the next event."""
    right_run, right_check = FanOut.run, Flow.check
    polls: dict[Flow, AsyncGenerator[Any, None]] = {}

    async def run(self: FanOut, events: AsyncGenerator[Any, None]) -> None:
        polls[self._flow] = events
        await right_run(self, events)

    async def check(self: Flow, payload: Any = None) -> None:
        await right_check(self, payload)
        if self in polls:
            await anext(polls[self])

    yield right_run, run
    yield right_check, check


@mutation(rules="S2/S7", seed=123)
def an_event_that_no_selector_can_read_reaches_no_filter() -> Replacements:
    """If a selector raises at an event, the filters with this selector do not get the event."""

    def find(self: _Table, event: Any) -> Iterable[Selecting]:
        try:
            return self._seekers.get(self._read(event), ())
        except Exception:  # noqa: BLE001  (whatever the selector raises)
            return ()

    yield _Table.find, find


@mutation(rules="S3|S1|S2/S7", seed=14, quick=True)
def an_event_does_not_wait_for_the_filter_that_it_wakes() -> Replacements:
    """An event wakes an idle filter, and counts as resolved by the filter at once."""

    def mark_active(self: Ledger, member: LedgerMember, seq: int) -> None:
        member.done = seq

    yield Ledger.mark_active, mark_active
