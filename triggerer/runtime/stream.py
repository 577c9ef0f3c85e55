"""A shared stream: its members, and the groups that serve them one after another."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
import structlog

from triggerer.domain.events import EventSource, WatcherRef
from triggerer.domain.lane_positions import ReplayRequest
from triggerer.domain.parked import KeptLane
from triggerer.errors import GroupEnded
from triggerer.runtime.catching_up import CatchingUp
from triggerer.runtime.context import RuntimeContext
from triggerer.runtime.group import Group
from triggerer.runtime.hosted import HostedTrigger
from triggerer.runtime.lags import Lag, Lags
from triggerer.runtime.pending_limit import PendingLimit
from triggerer.runtime.queue_lags import begin_group, enter_kept
from triggerer.runtime.replays import Replays
from triggerer.runtime.state import GroupState
from triggerer.runtime.stored_state import load_state
from triggerer.synchronization import AutoResetEvent, Notifier

_log = structlog.get_logger(__name__)

_READERS: Final = 8
"""Lanes that are read again at one time, beside the poll, by all watchers of a stream that are behind."""
_NOT_BEHIND: Final = BaseException()
"""Stands for a watcher that is not behind, beside None: one that is, and has not failed."""


class SharedStream:
    """The members of one stream key, and the group that serves them now.

    Before a group's poll starts, every member has joined it or counts as absent (contract, rule 14). Joining is
    synchronous, so there is no race.
    """

    def __init__(self, key: Hashable, context: RuntimeContext) -> None:
        self.key = key
        self.members: dict[HostedTrigger, None] = {}
        self.group: Group | None = None
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        """Set when its last producer has been closed and none of its tasks is running."""
        self.pending = PendingLimit(context.settings.max_pending)
        self.lags = Lags(
            context.positions, self._on_lag, self._on_readable, may_grow=context.falls_behind
        )
        """Which of the members' watchers are behind, and where."""
        self._hosts: dict[WatcherRef, HostedTrigger] = {}
        """Which member serves a watcher."""
        self._replays = Replays(self.lags, context, self.members.keys(), self._on_lag)
        self._catching_up: dict[WatcherRef, CatchingUp] = {}
        self._with_kept: set[WatcherRef] = set()
        """Those for whom messages are kept that were set aside."""
        self._readers = anyio.Semaphore(_READERS, fast_acquire=True)
        self._context = context
        self._backoff = context.restart_backoff()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._member_ended = Notifier()
        self._all_left = AutoResetEvent()
        self._is_emptied = False
        self._is_draining = False

    # Membership

    def add(self, member: HostedTrigger) -> None:
        """Let `member` join the running group now, or the next one when it opens."""
        self.members[member] = None
        member.stream_key = self.key
        self._hosts.update(dict.fromkeys(member.source.watchers, member))
        self._load_lags(member)
        self.set_back(member, member.replays)
        group = self.group
        if group is not None and not group.is_ending and self._tasks is not None:
            member.join(group)
            self._tasks.start_soon(self._serve, member, group, name=member.task_name)
            if self._is_emptied:
                group.start_pulling()
            self._start_catching_up(member)

    def close(self) -> None:
        """Stop the group and all members at once; nothing is resolved."""
        if self.group is not None:
            self.group.close()
        self.scope.cancel()
        for member in self.members:
            member.end()
        self._forget_members()

    def remove(self, member: HostedTrigger, *, on_purpose: bool) -> None:
        """Take `member` out. A group without members resolves what is outstanding, and is then closed."""
        if member in self.members:
            del self.members[member]
            member.stream_key = None
            member.withdraw(self.group, on_purpose=on_purpose)
            self._stop_catching_up(member.source.watchers)
            self._forget_hosts(member, member.source.watchers)
            if self.group is not None:
                # Those of its successor are asked once that can be made.
                for watcher in member.source.watchers:
                    self.group.state.selectors.pop(watcher.watcher_id, None)
            if on_purpose:
                self._forget_watchers(member.source.watchers)
        if not self.members:
            self._all_left.set()

    def _forget_members(self) -> None:
        for member in self.members:
            member.stream_key = None
        self.members.clear()
        self._hosts.clear()

    def _forget_hosts(self, member: HostedTrigger, watchers: Iterable[WatcherRef]) -> None:
        for watcher in watchers:
            if self._hosts.get(watcher) is member:
                del self._hosts[watcher]

    async def _serve(self, member: HostedTrigger, group: Group) -> None:
        try:
            await member.serve(group)
        finally:
            self._member_ended.notify_all()
        if not self._context.restarts:
            self.members.pop(member, None)
            self._forget_hosts(member, member.source.watchers)
            member.stream_key = None
            if not self.members:
                self._all_left.set()

    # Who is behind

    def _load_lags(self, member: HostedTrigger) -> None:
        with_kept = {one.watcher_id for one in member.spec.kept}
        self._with_kept.update(one for one in member.source.watchers if one.watcher_id in with_kept)
        fence = member.source.fence
        if fence is None or not self.lags.are_kept:
            return
        watchers = {watcher.watcher_id: watcher for watcher in member.source.watchers}
        for row in member.spec.positions:
            if row.watcher_id in watchers:
                self.lags.load(watchers[row.watcher_id], fence, row)
        self._note_lags(member)
        group = self.group
        if group is not None and group.state.keeps_messages:
            enter_kept(self.lags, group.state, member, member.spec.kept)

    def _note_open(self, state: GroupState) -> None:
        begin_group(self.lags, state, self.members)
        for member in self.members:
            self._start_catching_up(member)

    def _note_holders(self) -> None:
        """The stream is held for some watchers, or no longer."""
        holders = {} if self.group is None else self.group.state.holders
        for member in self.members:
            names = {self._hosts[one].name for one in holders if one in self._hosts}
            others = ", ".join(sorted(names.difference((member.name,))))
            member.held_by = others or None
            member.note_catching_up()

    def replace_source(
        self, member: HostedTrigger, source: EventSource, *, moved: Collection[WatcherRef]
    ) -> None:
        """Have the member serve other watchers from now on; `moved`: those that other members serve then."""
        before = set(member.source.watchers)
        member.replace_source(source, self.group)
        gone = before.difference(source.watchers)
        self._stop_catching_up(gone)
        self._forget_hosts(member, gone)
        self._hosts.update(dict.fromkeys(source.watchers, member))
        self._forget_watchers(gone.difference(moved))
        self._note_lags(member)
        self._start_catching_up(member)
        for other in {self._hosts[one]: None for one in gone if one in self._hosts}:
            self._start_catching_up(other)

    def restart(self, member: HostedTrigger) -> None:
        """Start a member that is held."""
        member.restart()
        for watcher in member.source.watchers:
            if (running := self._catching_up.get(watcher)) is not None:
                running.restart()
        self._start_catching_up(member)

    def replay_parked(self, member: HostedTrigger, lanes: Collection[KeptLane]) -> None:
        """Give its watchers what is kept for them in these lanes, and was set aside before."""
        group = self.group
        if group is not None and group.state.keeps_messages:
            enter_kept(self.lags, group.state, member, lanes)
            self._start_catching_up(member)
            return
        known = {one[:2] for one in member.spec.kept}
        more = [one for one in lanes if one[:2] not in known]
        # For the next group, where the source is a queue.
        member.spec = replace(member.spec, kept=(*member.spec.kept, *more))
        watcher_ids = {one.watcher_id for one in lanes}
        for watcher in member.source.watchers:
            if watcher.watcher_id in watcher_ids:
                self._with_kept.add(watcher)
                if (running := self._catching_up.get(watcher)) is not None:
                    running.look_for_kept()
        self._start_catching_up(member)

    def set_back(self, member: HostedTrigger, requests: Iterable[ReplayRequest]) -> None:
        """Set watchers of the member back as it is asked; a request that is known already changes nothing."""
        self._replays.ask(member, requests)
        self._start_replaying()

    def _start_replaying(self) -> None:
        group = self.group
        if (
            self._replays
            and not self._replays.is_running
            and group is not None
            and not group.is_ending
            and self._tasks is not None
        ):
            self._replays.is_running = True
            self._tasks.start_soon(self._replays.run, group.state, name=f"replays[{self.key}]")

    def _forget_watchers(self, watchers: Collection[WatcherRef]) -> None:
        self._replays.forget(watchers)
        self.lags.forget_watchers(watchers)

    def _stop_catching_up(self, watchers: Iterable[WatcherRef]) -> None:
        for watcher in watchers:
            self._with_kept.discard(watcher)
            if (catching_up := self._catching_up.pop(watcher, None)) is not None:
                catching_up.stop()

    def _source_of(self, watcher: WatcherRef) -> EventSource | None:
        member = self._hosts.get(watcher)
        return None if member is None else member.source

    def _on_lag(self, watcher: WatcherRef) -> None:
        # Often: where each message of a queue is a lane, with each of them.
        member = self._hosts.get(watcher)
        if member is not None:
            has_changed = self._note_lags_of(member, watcher)
            if watcher not in self._catching_up:
                self._start_catching_up(member)
            if has_changed:
                member.note_catching_up()

    def _on_readable(self, lag: Lag) -> None:
        running = self._catching_up.get(lag.watcher)
        if running is not None:
            running.offer(lag)

    def _note_lags(self, member: HostedTrigger) -> None:
        shown = {watcher.watcher_id for watcher in member.source.watchers}
        for watcher_id in member.catching_up.keys() - shown:
            del member.catching_up[watcher_id]
        for watcher in member.source.watchers:
            self._note_lags_of(member, watcher)

    def _note_lags_of(self, member: HostedTrigger, watcher: WatcherRef) -> bool:
        """Note whether it is behind, and why its last attempt failed; return whether that has changed."""
        watcher_id, shown = watcher.watcher_id, member.catching_up
        if not self.lags.count_behind(watcher_id):
            return shown.pop(watcher_id, _NOT_BEHIND) is not _NOT_BEHIND
        before, shown[watcher_id] = shown.get(watcher_id, _NOT_BEHIND), self._error_of(watcher)
        return before is not shown[watcher_id]

    def _error_of(self, watcher: WatcherRef) -> BaseException | None:
        catching_up = self._catching_up.get(watcher)
        return None if catching_up is None else catching_up.error

    def _start_catching_up(self, member: HostedTrigger) -> None:
        """Serve its watchers that are behind, each alone; those that are served already look again."""
        group = self.group
        if group is None or group.is_ending or group.state.producer is None or self._tasks is None:
            # Once it is open they are looked at.
            return
        for watcher in member.source.watchers:
            running = self._catching_up.get(watcher)
            if running is not None:
                running.wake()
            elif not member.is_held and (
                (watcher in self._with_kept and not group.state.keeps_messages)
                or self.lags.may_catch_up(watcher.watcher_id)
            ):
                catching_up = CatchingUp(
                    watcher,
                    member,
                    group.state,
                    self._context,
                    self._readers,
                    self._on_lag,
                    self._tasks,
                )
                if watcher in self._with_kept:
                    catching_up.look_for_kept()
                self._catching_up[watcher] = catching_up
                self._tasks.start_soon(self._catch_up, catching_up, name=member.task_name)

    async def _catch_up(self, catching_up: CatchingUp) -> None:
        watcher = catching_up.watcher
        try:
            await catching_up.run()
            if not catching_up.has_kept:
                self._with_kept.discard(watcher)
        finally:
            if self._catching_up.get(watcher) is catching_up:
                del self._catching_up[watcher]
        # It may have fallen behind again in the moment in which it had caught up.
        self._on_lag(watcher)

    # Life

    async def run(self) -> None:
        """Open groups for as long as there are members; returns when there are none."""
        while self.members:
            await self._load_members()
            if not self.members:
                return
            if self._is_draining or self._context.lease.is_over:
                # It is about to be closed. Another group would only pull events that are then given up.
                await anyio.sleep_forever()
            started = self._context.clock.monotonic()
            error = await self._run_group()
            if error is None:
                continue
            if not self._context.restarts:
                # The members have ended. If there are any, they joined while the group was ending.
                continue
            delay = self._backoff.next_delay(self._context.clock.monotonic() - started)
            _log.warning(
                "shared stream restarts",
                key=str(self.key),
                delay_s=round(delay, 2),
                error=str(error.__cause__ or error),
            )
            await self._context.clock.sleep_until(self._context.clock.monotonic() + delay)

    async def drain(self) -> None:
        """Pull nothing more. Wait until all is advanced or the group has ended, and the store has answered.

        No other group is opened; the caller closes the stream next.
        """
        self._is_draining = True
        if self.group is not None and not self.group.is_ending:
            self.group.stop_pulling()
            await self.group.wait_until_drained()
        await self.pending.wait_until_empty()

    async def _load_members(self) -> None:
        """Load what those who are not made yet need, all at the same time."""
        loads = [load for member in self.members if (load := member.begin_load()) is not None]
        for load in loads:
            await load.wait_until_settled()

    async def _run_group(self) -> GroupEnded | None:
        """Serve the members with one group. None: all have left, and what they owed is resolved."""
        made = [member for member in self.members if member.make()]
        if not made:
            # Nobody can open the stream, so nothing is pulled and nothing is missed.
            if not self._context.restarts:
                self._forget_members()
            return GroupEnded("no trigger of the stream can be made", key=self.key)
        opener = made[0].trigger
        assert opener is not None
        group = Group(
            self.key,
            type(opener),
            made[0].spec.kwargs,
            sink=self._context.sink,
            clock=self._context.clock,
            lease=self._context.lease,
            settings=self._context.settings,
            pending=self.pending,
            lags=self.lags,
            source_of=self._source_of,
            now=self._context.now,
            parked=self._context.parked,
            load_state=partial(load_state, self._context.states, made[0].source.fence, self.key),
            with_state=self._context.with_state,
            hands_over_at_bound=self._context.parked_at_bound == "dead_letter",
            random=self._context.random,
            on_open=self._note_open,
            on_holders=self._note_holders,
        )
        self._all_left.clear()
        try:
            return await self._serve_all(group)
        finally:
            group.clear()

    async def _serve_all(self, group: Group) -> GroupEnded | None:
        ended: GroupEnded | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks, self.group = tasks, group
            try:
                for member in self.members:
                    member.is_absent = False
                    member.join(group)
                    tasks.start_soon(self._serve, member, group, name=member.task_name)
                self._start_replaying()
                ended = await self._run_until_left(group)
                if ended is not None:
                    await self._end_members(ended)
            finally:
                self._tasks = self.group = None
                self._catching_up.clear()
                self._replays.is_running = False
            tasks.cancel_scope.cancel()
        return ended

    async def _run_until_left(self, group: Group) -> GroupEnded | None:
        ended: GroupEnded | None = None

        async def run() -> None:
            nonlocal ended
            try:
                await group.run()
            except GroupEnded as error:
                ended = error
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, name=f"shared-stream[{self.key}]")
            while True:
                await self._all_left.wait()
                if self.members:
                    continue
                self._is_emptied = True
                while not self.members and group.outstanding:
                    group.stop_pulling()
                    await group.wait_until_drained()
                self._is_emptied = False
                if not self.members:
                    break
            group.close()
            tasks.cancel_scope.cancel()
        return ended

    async def _end_members(self, ended: GroupEnded) -> None:
        """Wait until each filter has ended with the error. Those in back-off, or that do not end, are cancelled."""
        for member in self.members:
            if member.subscriber is None:
                member.note_failure(ended)
        with anyio.move_on_after(self._context.settings.close_timeout):
            while any(member.subscriber is not None for member in self.members):
                await self._member_ended.wait()
        for member in [one for one in self.members if one.subscriber is not None]:
            member.note_failure(ended)
            if not self._context.restarts:
                # It is about to be cancelled, so it cannot take itself out.
                del self.members[member]
                member.stream_key = None
