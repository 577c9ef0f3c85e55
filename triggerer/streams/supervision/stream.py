"""A shared stream: its members, and the groups that serve them one after another."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Final

import anyio
import structlog

from triggerer.backoff import is_worth_a_line
from triggerer.domain.watchers.stream_names import readable_key
from triggerer.errors import GroupEnded
from triggerer.streams.catchup.processing.catch_up_tasks import CatchUpTasks
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.counts import StreamCounts
from triggerer.streams.delivery.group import Group
from triggerer.streams.pending_limit import PendingLimit
from triggerer.streams.supervision.member import Member
from triggerer.streams.supervision.stream_state import load_state
from triggerer.synchronization import AutoResetEvent, Notifier

_log = structlog.get_logger(__name__)
_LASTS_S: Final = 5.0
"""A restarted stream has recovered once it has run for this time. If its source is unreachable, the group ends sooner.
"""


class SharedStream:
    """The members of one stream key, and the group that serves them now.

    Before a group's poll starts, every member has joined the group or counts as absent (contract, rule 14). Joining is
    synchronous, so no message can be broadcast before the last member has joined.
    """

    def __init__(self, key: Hashable, context: RuntimeContext) -> None:
        self.key = key
        self.members: dict[Member, None] = {}
        self.group: Group | None = None
        self.counts = StreamCounts()
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        """Set when the stream's last producer is closed and none of the stream's tasks runs."""
        self.pending = PendingLimit(context.settings.max_pending)
        self.behind = CatchUpTasks(key, self.members.keys(), context)
        """The catch-up tasks of its members' watchers."""
        self._context = context
        self._backoff = context.restart_backoff()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._member_ended = Notifier()
        self._all_left = AutoResetEvent()
        self._is_emptied = False
        self._is_draining = False
        self._warned_of = ""
        """The error of the last restart; empty if the stream never failed or has recovered."""
        self._is_restarting = False
        """True from a failure until the stream has run for `_LASTS_S` again."""

    @property
    def name(self) -> str:
        """The readable name of the key. Any thread may read it."""
        # Iterate over a copy: in another thread, a member may be added or removed during the iteration.
        named = (member.stream_name for member in list(self.members) if member.stream_name)
        return next(named, "") or readable_key(self.key)

    @property
    def last_error(self) -> str:
        """The error of the last restart; empty once the stream has recovered."""
        return self._warned_of

    # Membership

    def add(self, member: Member) -> None:
        """Let `member` join the running group now, or the next one when it opens."""
        self.members[member] = None
        member.stream_key = self.key
        self.behind.add(member)
        group = self.group
        if group is not None and not group.is_ending and self._tasks is not None:
            member.join(group)
            self._tasks.start_soon(self._serve, member, group, name=member.task_name)
            if self._is_emptied:
                group.start_pulling()
            self.behind.start(member)

    def close(self) -> None:
        """Stop the group and all members at once; nothing is resolved."""
        if self.group is not None:
            self.group.close()
        self.scope.cancel()
        for member in self.members:
            member.end()
        self._forget_members()
        self.behind.backlogs.writes.close()

    def remove(self, member: Member, *, on_purpose: bool) -> None:
        """Remove `member`. A group without members resolves its outstanding events, and is then closed."""
        if member in self.members:
            del self.members[member]
            member.stream_key = None
            member.withdraw(self.group, on_purpose=on_purpose)
            self.behind.withdraw(member)
            if self.group is not None:
                # Drop the selectors of the member's watchers, because a replacement may have other arguments. Until the
                # replacement sets its selectors, every message counts as wanted, so that no message is skipped.
                for watcher in member.source.watchers:
                    self.group.state.selectors.pop(watcher.watcher_id, None)
            if on_purpose:
                self.behind.forget_watchers(member.source.watchers)
        if not self.members:
            self._all_left.set()

    def _forget_members(self) -> None:
        for member in self.members:
            member.stream_key = None
        self.members.clear()
        self.behind.forget_members()

    async def _serve(self, member: Member, group: Group) -> None:
        try:
            await member.serve(group)
        finally:
            self._member_ended.notify_all()
        if not self._context.restarts:
            self.members.pop(member, None)
            self.behind.stop_serving(member, member.source.watchers)
            member.stream_key = None
            if not self.members:
                self._all_left.set()

    # Life

    async def run(self) -> None:
        """Open groups for as long as there are members; returns when there are none."""
        while self.members:
            await self._load_members()
            if not self.members:
                return
            if self._is_draining or self._context.lease.is_over:
                # The stream is about to be closed. A new group would only pull messages that the broker must redeliver.
                await anyio.sleep_forever()
            started = self._context.clock.monotonic()
            error = await self._run_group()
            if error is None:
                continue
            if not self._context.restarts:
                # All members of the failed group have ended. A member that was added meanwhile gets a new group.
                continue
            delay = self._backoff.next_delay(self._context.clock.monotonic() - started)
            self._log_restart(str(error.__cause__ or error), delay)
            await self._context.clock.sleep_until(self._context.clock.monotonic() + delay)

    def _log_restart(self, error: str, delay: float) -> None:
        """Log a warning for a new error at once, and for a repeated error at growing intervals."""
        is_news = error != self._warned_of or is_worth_a_line(self._backoff.failures)
        self._warned_of, self._is_restarting = error, True
        self.counts.restarts += 1
        log = _log.warning if is_news else _log.debug
        log("shared stream restarts", stream=self.name, delay_s=round(delay, 2), error=error)

    async def _log_recovery(self) -> None:
        """Log that a failed stream is read again, once the stream has run for `_LASTS_S`."""
        clock = self._context.clock
        await clock.sleep_until(clock.monotonic() + _LASTS_S)
        self._warned_of, self._is_restarting = "", False
        _log.info("shared stream is read again", stream=self.name)

    async def drain(self) -> None:
        """Stop pulling, and wait until all pulled messages are advanced, or the group has ended.

        Then wait until the store has answered for all derived events. No new group is opened. The caller closes the
        stream next.
        """
        self._is_draining = True
        if self.group is not None and not self.group.is_ending:
            self.group.stop_pulling()
            await self.group.wait_until_drained()
        await self.pending.wait_until_empty()

    async def _load_members(self) -> None:
        """Load the code of all members that are not made yet, at the same time."""
        loads = [load for member in self.members if (load := member.begin_load()) is not None]
        for load in loads:
            await load.wait_until_settled()

    async def _run_group(self) -> GroupEnded | None:
        """Serve the members with one group. Return the group's error, or None if all members left."""
        made = [member for member in self.members if member.make()]
        if not made:
            # No member can open the stream, so nothing is pulled and nothing is missed.
            if not self._context.restarts:
                self._forget_members()
            return GroupEnded("no trigger of the stream can be made", key=self.key)
        opener = made[0].trigger
        assert opener is not None
        group = Group(
            self.key,
            type(opener),
            made[0].spec.kwargs,
            name=self.name,
            sink=self._context.sink,
            clock=self._context.clock,
            lease=self._context.lease,
            settings=self._context.settings,
            pending=self.pending,
            backlogs=self.behind.backlogs,
            source_of=self.behind.source_of,
            name_of=self.behind.name_of,
            now=self._context.now,
            parked=self._context.parked,
            load_state=partial(load_state, self._context.states, made[0].source.fence, self.key),
            with_state=self._context.with_state,
            dead_letters_at_bound=self._context.parked_at_bound == "dead_letter",
            random=self._context.random,
            mark=self._context.marks.find(made[0].source.fence),
            before_poll=self.behind.wait_until_restored,
            on_open=self.behind.mark_open,
            on_blocked=self.behind.record_blockers,
        )
        self._all_left.clear()
        self.counts.begin(group.state)
        try:
            return await self._serve_all(group)
        finally:
            self.counts.end()
            group.clear()

    async def _serve_all(self, group: Group) -> GroupEnded | None:
        ended: GroupEnded | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks, self.group = tasks, group
            self.behind.begin(group, tasks)
            try:
                for member in self.members:
                    member.is_absent = False
                    member.join(group)
                    tasks.start_soon(self._serve, member, group, name=member.task_name)
                self.behind.start_replaying()
                ended = await self._run_until_left(group)
                if ended is not None:
                    await self._end_members(ended)
            finally:
                self._tasks = self.group = None
                self.behind.end()
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
            if self._is_restarting:
                tasks.start_soon(self._log_recovery, name=f"shared-stream-recovery[{self.key}]")
            while True:
                await self._all_left.wait()
                if self.members:
                    continue
                self._is_emptied = True
                await self._drain_emptied(group)
                self._is_emptied = False
                if not self.members:
                    break
            group.close()
            tasks.cancel_scope.cancel()
        return ended

    async def _drain_emptied(self, group: Group) -> None:
        """Stop pulling messages. Wait until every message is advanced, or a member has joined."""
        while not self.members and group.outstanding:
            group.stop_pulling()
            await group.wait_until_drained()

    async def _end_members(self, ended: GroupEnded) -> None:
        """Wait until each filter has ended with the group's error, but not for longer than the close timeout.

        The caller then cancels the filters that still run, and the members that wait for a restart.
        """
        for member in self.members:
            if member.subscriber is None:
                member.record_failure(ended)
        with anyio.move_on_after(self._context.settings.close_timeout):
            while any(member.subscriber is not None for member in self.members):
                await self._member_ended.wait()
        for member in [one for one in self.members if one.subscriber is not None]:
            member.record_failure(ended)
            if not self._context.restarts:
                # The member's task is about to be cancelled, so it cannot remove the member itself.
                del self.members[member]
                member.stream_key = None
