"""The tasks that catch up for a stream's watchers: one task for each watcher that is behind."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import anyio

from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import ReplayRequest, encode_lane
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.backlogs.queue_backlogs import begin_group, enter_stored
from triggerer.streams.catchup.backlogs.replays import Replays
from triggerer.streams.catchup.processing.catch_up import CatchUp
from triggerer.streams.catchup.reading.reader_slots import ReaderSlots
from triggerer.streams.catchup.reading.replayed_messages import give_back
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group import Group
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import Member

_READERS: Final = 8
"""The most lanes of a stream that are read at the same time for watchers that are behind, in addition to the poll."""
_NOT_BEHIND: Final = BaseException()
"""Stands for "not behind" where None stands for "behind, without an error"."""


class CatchUpTasks:
    """The catch-up tasks of one stream, across its groups.

    Args:
        members: The stream's current members.
    """

    def __init__(self, key: Hashable, members: Collection[Member], context: RuntimeContext) -> None:
        self.backlogs = Backlogs(
            context.positions,
            self._on_backlog,
            self._on_readable,
            self._on_settled,
            may_grow=context.falls_behind,
        )
        """The backlogs of the members' watchers."""
        self._key = key
        self._members = members
        self._context = context
        self._member_of: dict[WatcherRef, Member] = {}
        """The member that serves each watcher."""
        self._loaded: dict[WatcherRef, Fence] = {}
        """By watcher, the lease under which the rows of the watcher's backlogs were loaded.

        Under this lease only this process changes the rows, so they are not loaded again.
        """
        self._replays = Replays(self.backlogs, context, members, self._on_backlog)
        self._catching_up: dict[WatcherRef, CatchUp] = {}
        self._with_replays: set[WatcherRef] = set()
        """Watchers that may have parked messages to replay."""
        self._readers = ReaderSlots(_READERS, context.clock)
        self._group: Group | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    # Members and groups

    def add(self, member: Member) -> None:
        """Load the stored backlogs and replays of a new member's watchers."""
        self._member_of.update(dict.fromkeys(member.source.watchers, member))
        self._load_backlogs(member)
        self._try_now(member.source.watchers)
        self.rewind(member, member.replays)

    def _load_backlogs(self, member: Member) -> None:
        with_stored = {one.watcher_id for one in member.spec.stored_lanes}
        self._with_replays.update(
            one for one in member.source.watchers if one.watcher_id in with_stored
        )
        fence = member.source.fence
        if fence is None or not self.backlogs.is_enabled:
            return
        watchers = {watcher.watcher_id: watcher for watcher in member.source.watchers}
        for row in member.spec.positions:
            # Load a watcher's rows only once for each lease. The spec of a member that is added later may still contain
            # a row that this process has deleted.
            watcher = watchers.get(row.watcher_id)
            if watcher is not None and self._loaded.get(watcher) != fence:
                self.backlogs.load(watcher, fence, row)
        self._mark_loaded(member.source)
        self._record_backlogs(member)
        group = self._group
        if group is not None and group.state.stores_messages:
            enter_stored(self.backlogs, group.state, member, member.spec.stored_lanes)

    def _mark_loaded(self, source: EventSource) -> None:
        if source.fence is not None and self.backlogs.is_enabled:
            self._loaded.update(dict.fromkeys(source.watchers, source.fence))

    def withdraw(self, member: Member) -> None:
        """End the tasks of a member that was removed."""
        self._stop_catching_up(member.source.watchers)
        self.stop_serving(member, member.source.watchers)

    def stop_serving(self, member: Member, watchers: Iterable[WatcherRef]) -> None:
        """Forget that the member serves these watchers."""
        for watcher in watchers:
            if self._member_of.get(watcher) is member:
                del self._member_of[watcher]

    def forget_members(self) -> None:
        """Forget all members."""
        self._member_of.clear()

    def forget_unserved(self) -> None:
        """Forget the watchers that no member of this stream serves: they read another stream now."""
        gone = self._loaded.keys() - self._member_of.keys()
        if gone:
            self.forget_watchers(gone)

    def forget_watchers(self, watchers: Collection[WatcherRef]) -> None:
        """Forget these watchers, which were deleted or have left the stream."""
        self._replays.forget(watchers)
        for watcher in watchers:
            self._loaded.pop(watcher, None)
        self.backlogs.forget_watchers(watchers)
        if self._group is not None:
            self._group.state.trim_lane_tail()

    def begin(self, group: Group, tasks: anyio.abc.TaskGroup) -> None:
        """Use this group from now on. The catch-up tasks run in the task group `tasks`."""
        self._group, self._tasks = group, tasks
        if not group.state.is_acknowledged:
            # A group of the fast path has no producer, so `mark_open` is never called.
            for member in self._members:
                self.start(member)

    def end(self) -> None:
        """Forget the group. It has ended, and so have its tasks."""
        self._group = self._tasks = None
        self._catching_up.clear()
        self._replays.is_running = False
        self.record_blockers()

    def mark_open(self, state: GroupState) -> None:
        """Start catching up: the producer is known, and has pulled nothing yet."""
        begin_group(self.backlogs, state, self._members)
        for backlog in self.backlogs.all():
            # If an earlier group ended just after the broker had advanced to a backlog's end, drop the backlog now.
            state.end_if_advanced(backlog)
        for member in self._members:
            self.start(member)

    def record_blockers(self) -> None:
        """Show on each member the watchers that block the stream, and the first lane that stands still."""
        blocked_by = {} if self._group is None else self._group.state.blocked_by
        standing = None if self._group is None else _standing_text(self._group.state.standing)
        for member in self._members:
            names = {self._member_of[one].name for one in blocked_by if one in self._member_of}
            others = ", ".join(sorted(names.difference((member.name,))))
            before = member.blocked_by, member.standing
            member.blocked_by, member.standing = others or None, standing
            if (member.blocked_by, member.standing) != before:
                member.mark_catching_up()

    def source_of(self, watcher: WatcherRef) -> EventSource | None:
        """Return the event source of the member that serves a watcher. None: no member serves the watcher."""
        member = self._member_of.get(watcher)
        return None if member is None else member.source

    def name_of(self, watcher: WatcherRef) -> str:
        """Return the name of the member that serves a watcher, or the watcher's id if no member does."""
        member = self._member_of.get(watcher)
        return f"watcher {watcher.watcher_id}" if member is None else member.name

    # Commands

    def replace_source(self, member: Member, source: EventSource, *, name: str) -> None:
        """Let the member serve other watchers. Watchers that it no longer serves were deleted."""
        before = set(member.source.watchers)
        member.replace_source(source, name=name, group=self._group)
        gone = before.difference(source.watchers)
        self._stop_catching_up(gone)
        self.stop_serving(member, gone)
        self._member_of.update(dict.fromkeys(source.watchers, member))
        self._mark_loaded(source)
        self.forget_watchers(gone)
        self._try_now(set(source.watchers) - before)
        self._record_backlogs(member)
        self.start(member)

    def restart(self, member: Member) -> None:
        """Restart the member if it awaits a restart, and try its watchers' failed messages at once."""
        member.restart()
        self._try_now(member.source.watchers)
        for watcher in member.source.watchers:
            if (running := self._catching_up.get(watcher)) is not None:
                running.restart()
        self.start(member)

    def replay_parked(self, member: Member, lanes: Collection[StoredBacklog]) -> None:
        """Let a member's watchers process the parked messages of these lanes, because an operator replays them."""
        group = self._group
        if group is not None and group.state.stores_messages:
            enter_stored(self.backlogs, group.state, member, lanes)
            self.start(member)
            return
        known = {one[:2] for one in member.spec.stored_lanes}
        more = [one for one in lanes if one[:2] not in known]
        # If the upstream is a queue, the next group reads the messages of these lanes.
        member.spec = replace(member.spec, stored_lanes=(*member.spec.stored_lanes, *more))
        watcher_ids = {one.watcher_id for one in lanes}
        for watcher in member.source.watchers:
            if watcher.watcher_id in watcher_ids:
                self._with_replays.add(watcher)
                if (running := self._catching_up.get(watcher)) is not None:
                    running.read_replayed_messages()
        self.start(member)

    def _try_now(self, watchers: Iterable[WatcherRef]) -> None:
        """Try the blocked messages of these watchers at once, because of a new filter or an operator's command."""
        for watcher in watchers:
            for backlog in self.backlogs.behind(watcher.watcher_id):
                backlog.try_now()

    def rewind(self, member: Member, requests: Iterable[ReplayRequest]) -> None:
        """Carry out replays of the member's watchers. A request that was in an earlier call is ignored."""
        self._replays.add_requests(member, requests)
        self.start_replaying()

    def start_replaying(self) -> None:
        """Start to carry out replays, if there is a group and no replay is being carried out."""
        group = self._group
        if (
            self._replays
            and not self._replays.is_running
            and group is not None
            and not group.is_ending
            and self._tasks is not None
        ):
            self._replays.is_running = True
            self._tasks.start_soon(self._replays.run, group.state, name=f"replays[{self._key}]")

    async def wait_until_restored(self) -> None:
        """Wait until the stream has carried out the replay requests of a restored database."""
        await self._replays.wait_until_restored()

    # Changes

    def _on_backlog(self, watcher: WatcherRef) -> None:
        # If each message of a queue is its own lane, this runs for each message, so it must be fast.
        member = self._member_of.get(watcher)
        if member is not None:
            has_changed = self._record_backlogs_of(member, watcher)
            if watcher not in self._catching_up:
                self.start(member)
            if has_changed:
                member.mark_catching_up()

    def _on_readable(self, backlog: Backlog) -> None:
        running = self._catching_up.get(backlog.watcher)
        if running is not None:
            running.offer(backlog)

    def _on_settled(self, backlog: Backlog) -> None:
        # The broker may have advanced to the backlog's end before the events were durable. In that case no later
        # advance drops the backlog, so drop it here.
        if self._group is not None:
            self._group.state.end_if_advanced(backlog)

    def _record_backlogs(self, member: Member) -> None:
        shown = {watcher.watcher_id for watcher in member.source.watchers}
        for watcher_id in member.catching_up.keys() - shown:
            del member.catching_up[watcher_id]
        for watcher in member.source.watchers:
            self._record_backlogs_of(member, watcher)

    def _record_backlogs_of(self, member: Member, watcher: WatcherRef) -> bool:
        """Record whether the watcher is behind, and its last error; return whether that has changed."""
        watcher_id, shown = watcher.watcher_id, member.catching_up
        if not self.backlogs.count_behind(watcher_id):
            return shown.pop(watcher_id, _NOT_BEHIND) is not _NOT_BEHIND
        before, shown[watcher_id] = shown.get(watcher_id, _NOT_BEHIND), self._error_of(watcher)
        return before is not shown[watcher_id]

    def _error_of(self, watcher: WatcherRef) -> BaseException | None:
        catching_up = self._catching_up.get(watcher)
        return None if catching_up is None else catching_up.error

    # Catching up

    def start(self, member: Member) -> None:
        """Start the tasks of the member's watchers that are behind. If a watcher's task runs already, wake the task."""
        group = self._group
        if group is None or group.is_ending or self._tasks is None:
            return
        if not group.state.is_acknowledged:
            self._give_back(member, self._tasks)
            return
        if group.state.producer is None:
            # The producer is not known yet. `mark_open` starts the tasks later.
            return
        for watcher in member.source.watchers:
            running = self._catching_up.get(watcher)
            if running is not None:
                running.wake()
            elif not member.awaits_restart and (
                (watcher in self._with_replays and not group.state.stores_messages)
                or self.backlogs.may_catch_up(watcher.watcher_id)
            ):
                catching_up = CatchUp(
                    watcher,
                    member,
                    group.state,
                    self._context,
                    self._readers,
                    self._on_backlog,
                    self._tasks,
                )
                if watcher in self._with_replays:
                    catching_up.read_replayed_messages()
                self._catching_up[watcher] = catching_up
                self._tasks.start_soon(self._catch_up, catching_up, name=member.task_name)

    def _give_back(self, member: Member, tasks: anyio.abc.TaskGroup) -> None:
        fence, parked = member.source.fence, self._context.parked
        if fence is None or parked is None:
            return
        for watcher in member.source.watchers:
            if watcher in self._with_replays:
                self._with_replays.discard(watcher)
                tasks.start_soon(give_back, watcher, fence, parked)

    async def _catch_up(self, catching_up: CatchUp) -> None:
        watcher = catching_up.watcher
        try:
            await catching_up.run()
            if not catching_up.has_replays:
                self._with_replays.discard(watcher)
        finally:
            if self._catching_up.get(watcher) is catching_up:
                del self._catching_up[watcher]
        # The watcher may have fallen behind again just when it had caught up.
        self._on_backlog(watcher)

    def _stop_catching_up(self, watchers: Iterable[WatcherRef]) -> None:
        for watcher in watchers:
            self._with_replays.discard(watcher)
            if (catching_up := self._catching_up.pop(watcher, None)) is not None:
                catching_up.stop()


def _standing_text(standing: Mapping[Hashable, str]) -> str | None:
    """Return a text for users that names one standing lane with its reason, and how many more stand; None if none does.

    A lane stands if its producer can neither deliver the next message again nor dead-letter it.

    Args:
        standing: The producer's reason, by lane.
    """
    if not standing:
        return None
    lane, why = next(iter(standing.items()))
    more = f", as do {len(standing) - 1} more" if len(standing) > 1 else ""
    return f"lane {encode_lane(lane) or repr(lane)} stands{more}: {why}"
