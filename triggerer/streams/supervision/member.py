"""A member: one trigger, which the runtime makes, runs, and restarts after a growing delay whenever it ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import anyio
import structlog
from anyio.lowlevel import checkpoint_if_cancelled

from triggerer.abc import BaseEventTrigger, has_bookmark
from triggerer.domain.events import EventSource
from triggerer.domain.watchers.lane_positions import LanePosition, ReplayRequest
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.domain.watchers.stream_names import stream_name as name_of_stream
from triggerer.errors import GroupEnded, PluginError
from triggerer.streams.cancellation import plugin_code, take_back_stray_cancellations
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group import Group
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.pending_limit import PendingLimit
from triggerer.streams.supervision.blocked_loop import named_task
from triggerer.streams.supervision.bookmark_runner import run_from_bookmark
from triggerer.streams.supervision.failure_log import FailureLog
from triggerer.streams.supervision.refused_events import RefusedEvents
from triggerer.streams.supervision.runner import Runner

_log = structlog.get_logger(__name__)


class Load(Protocol):
    """Plugin code that is being loaded, outside the event loop."""

    @property
    def is_settled(self) -> bool:
        """Whether the load has ended, or has taken so long that callers no longer wait for it."""

    async def wait_until_settled(self) -> None:
        """Wait until `is_settled`."""


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """Describes one trigger: how to make it, its arguments, its watchers, and their backlogs in the store."""

    name: str
    """The names of its watchers, for logs and errors."""
    make: Callable[[], BaseEventTrigger]
    """Called before every start. May raise anything: it runs the plugin's code."""
    kwargs: dict[str, Any]
    """The arguments that open the stream, if this trigger opens it."""
    source: EventSource
    positions: tuple[LanePosition, ...] = ()
    """The stored backlogs of its watchers, for a log."""
    stored_lanes: tuple[StoredBacklog, ...] = ()
    """The lanes with stored messages for its watchers."""
    stream_id: str | None = None
    """The digest of the trigger's stream key, from the DAG processor. It is known even if the trigger cannot be made.
    """
    load: Callable[[], Load] | None = None
    """Begins to load the code of `make` again, because the file of the trigger's class may have changed.

    Called before each call of `make` but the first. If the load fails, `make` raises the error of the load.
    """


class MemberState(StrEnum):
    """The state of a member. For each watcher, users see `waiting`, `running`, `failing` or `catching_up`."""

    WAITING = "waiting"
    RUNNING = "running"
    FAILING = "failing"
    ENDED = "ended"


class Member:
    """One trigger under supervision. Only the `Manager` and its streams change a member; other code reads it."""

    def __init__(
        self,
        spec: TriggerSpec,
        context: RuntimeContext,
        on_state: Callable[[Member], None],
    ) -> None:
        self.spec = spec
        self.source = spec.source
        self.state = MemberState.WAITING
        self.error: BaseException | None = None
        self.trigger: BaseEventTrigger | None = None
        self.subscriber: Subscriber | None = None
        self.key: Hashable | None = None
        self.stream_name = ""
        """The readable name of the key; empty until the key has been read."""
        self.is_keyed = False
        """True once the key has been read, when the trigger was first made."""
        self.is_absent = False
        """True if the group counts each broadcast as failed for the member, because its filter does not run."""
        self.awaits_restart = False
        """True if the member has failed and waits for `restart`. Only in the testing harness."""
        self._restarted = anyio.Event()
        self.stream_key: Hashable | None = None
        """The key of its shared stream, if any."""
        self.pending = PendingLimit(context.settings.max_pending)
        """For a trigger without a stream: counts and limits its events that the store has not answered."""
        self.catching_up: dict[int, BaseException | None] = {}
        """Its watchers that are behind, by id, with the error of the last attempt to catch up. None: no error."""
        self.blocked_by: str | None = None
        """The names of the watchers for which its stream waits, because the store has no room for their messages."""
        self.standing: str | None = None
        """The first lane that the stream's producer reports as standing, with the reason, as text."""
        self.replays: tuple[ReplayRequest, ...] = ()
        """The open replays of its watchers."""
        self.replay_errors: dict[int, Exception] = {}
        """By watcher id, the reason why the watcher's last replay was impossible."""
        self.name = spec.name
        """The names of its current watchers, for logs and errors."""
        self.refusals = RefusedEvents(spec.name, context.clock, context.now, lambda: on_state(self))
        """The events that the store has refused. A refusal does not end the member."""
        self._runner = Runner(
            spec.name,
            spec.source,
            sink=context.sink,
            pending=self.pending,
            on_refused=self.refusals.record,
        )
        self._context = context
        self._on_state = on_state
        self._backoff = context.restart_backoff()
        self._scope: anyio.CancelScope | None = None
        self._is_stopped = False
        self._failure_log = FailureLog(context.clock)

    @property
    def task_name(self) -> str:
        """The name of the tasks that run the trigger's code. `blocked_loop.py` finds the watchers by this name."""
        return f"watcher[{self.name}]"

    def replace_source(self, source: EventSource, *, name: str, group: Group | None = None) -> None:
        """Replace the watchers that receive the trigger's events.

        Args:
            name: The names of the new watchers, for logs and errors.
            group: The member's group, if any.
        """
        if group is not None and (self.is_absent or self._has_failed):
            group.subscribers.replace_absent(self.source.watchers, source.watchers)
        self.source = self._runner.source = source
        self.name = self._runner.name = self.refusals.name = name
        if self.subscriber is not None:
            self.subscriber.source, self.subscriber.name = source, name

    @property
    def _has_failed(self) -> bool:
        """True if the group has failed the subscriber, and the member's task has not noticed it yet."""
        return self.subscriber is not None and not self.subscriber.is_present

    # Making

    def make(self) -> bool:
        """Make the trigger and read its key. Return False, and set `error`, if the plugin raises or the key changed."""
        if self.trigger is not None:
            return True
        try:
            with named_task(self.task_name), plugin_code(f"Making {self.name}"):
                trigger = self.spec.make()
                key = trigger.shared_stream_key()
                stream_name = name_of_stream(trigger.describe_stream(), key)
                # Call the key's own methods here, where an error fails only this trigger. Later the runtime calls them
                # in code that serves all triggers.
                hash(key)
                repr(key)
                str(key)
                is_another = self.is_keyed and bool(key != self.key)
        except Exception as error:
            # A plugin's error concerns only this trigger: it is shown, the trigger is retried, and the others continue.
            self._failure_log.add(self.name, error)
            self.record_failure(error)
            return False
        if is_another:
            changed = PluginError(
                f"The stream key of {self.name} was {self.key!r} and is now {key!r}",
                hint="derive the key from the arguments alone",
            )
            self._failure_log.add(self.name, changed)
            self.record_failure(changed)
            return False
        self.trigger = trigger
        self.key = key
        self.stream_name = stream_name
        self.is_keyed = True
        return True

    def mark_catching_up(self) -> None:
        """Report that one of the member's watchers has fallen behind, has failed during catch-up, or has caught up."""
        self._on_state(self)

    def record_replay_failure(self, watcher_id: int, error: Exception) -> None:
        self.replay_errors[watcher_id] = error
        self._on_state(self)

    def record_failure(self, error: BaseException) -> None:
        self.error = error
        self._enter(MemberState.FAILING)

    def _enter(self, state: MemberState) -> None:
        self.state = state
        self._on_state(self)

    async def wait_for_retry(self) -> None:
        """Wait until the trigger may be made again, or the member is stopped."""
        with anyio.CancelScope() as self._scope:
            if not self._is_stopped:
                now = self._context.clock.monotonic()
                await self._context.clock.sleep_until(now + self._backoff.next_delay())
                await self._load()

    def begin_load(self) -> Load | None:
        """Begin to load the code that `make` needs; None if there is nothing to wait for."""
        if self.trigger is not None or self.spec.load is None:
            return None
        load = self.spec.load()
        return None if load.is_settled else load

    async def _load(self) -> None:
        """Load the trigger's code. Afterwards the caller must check whether the member was stopped meanwhile."""
        load = self.begin_load()
        if load is not None:
            await load.wait_until_settled()

    async def discard(self) -> None:
        """Clean the trigger up and drop it; a restart makes a new one."""
        trigger, self.trigger, self.subscriber = self.trigger, None, None
        if trigger is not None:
            await self.clean_up(trigger)

    async def clean_up(self, trigger: BaseEventTrigger) -> None:
        """Call the trigger's `cleanup()`. An error of `cleanup()` is logged, not raised."""
        await take_back_stray_cancellations()
        with anyio.move_on_after(self._context.settings.close_timeout, shield=True) as scope:
            try:
                with plugin_code(f"cleanup() of {self.name}"):
                    await trigger.cleanup()
            except Exception:
                # The trigger is dropped anyway; the log names the error.
                _log.exception("cleanup of a trigger failed", trigger=self.name)
        if scope.cancelled_caught:
            _log.error("cleanup of a trigger timed out", trigger=self.name)
        await take_back_stray_cancellations()

    # In a group

    def join(self, group: Group) -> bool:
        """Join the group. If the trigger could not be made, count the member as absent and return False.

        Raises:
            GroupEnded: The group is ending.
        """
        if self.trigger is None:
            if not self.is_absent:
                group.subscribers.add_absent(self.source.watchers)
                self.is_absent = True
            return False
        self.subscriber = group.subscribers.join(
            self.trigger,
            name=self.name,
            source=self.source,
            was_absent=self.is_absent,
            on_refused=self.refusals.record,
        )
        self.is_absent = False
        self.error = None
        self._enter(MemberState.RUNNING)
        group.mark_joined()
        return True

    async def serve(self, group: Group) -> None:
        """Run in the group, and restart whenever the filter ends. Returns when the group is ending, or after `stop`.

        In the testing harness (`RuntimeContext.restarts` is False), the filter is not restarted automatically. If the
        filter failed and its watchers may fall behind, `serve` waits for a call of `restart`. Otherwise `serve`
        returns.
        """
        with anyio.CancelScope() as self._scope:
            while True:
                started = self._context.clock.monotonic()
                if self.subscriber is not None:
                    try:
                        if not self._is_stopped:
                            await self._run_subscriber(group, self.subscriber)
                    finally:
                        await self.discard()
                if group.is_ending or self._is_stopped:
                    return
                if not self._context.restarts:
                    if group.state.may_fall_behind and self.is_absent:
                        if not await self._rejoin_after_restart(group):
                            return
                        continue
                    if self.is_absent:
                        # The member does not join again, so later broadcasts must not count as failed for it.
                        group.subscribers.remove_absent(self.source.watchers)
                        self.is_absent = False
                    return
                if not await self._rejoin_later(group, started):
                    return

    async def _run_subscriber(self, group: Group, subscriber: Subscriber) -> None:
        error: Exception | None = None
        try:
            await subscriber.run()
        except Exception as raised:
            error = raised
        # If this task was cancelled, leave here, so that the open message stays unresolved.
        await checkpoint_if_cancelled()
        if error is not None:
            if not group.is_ending:
                self._failure_log.add(self.name, error)
                self._fail_in(group, subscriber, error)
                if self._context.restarts:
                    group.await_members()
            # A call of `restart` counts from now on, even while the trigger is being cleaned up.
            self._restarted = anyio.Event()
            self.record_failure(error)
            return
        # The filter returned. If it will be started again, messages that are broadcast until then count as failed. So
        # the broker redelivers these messages.
        if not group.is_ending:
            group.subscribers.leave(subscriber, comes_back=self._context.restarts)
            if self._context.restarts:
                group.subscribers.add_absent(self.source.watchers)
                self.is_absent = True
                group.await_members()
        self._enter(MemberState.WAITING if self._context.restarts else MemberState.ENDED)

    def _fail_in(self, group: Group, subscriber: Subscriber, error: Exception) -> None:
        """Fail the subscriber's unresolved events. The member counts as absent until it joins again."""
        group.subscribers.fail(subscriber, error)
        self.is_absent = True

    def restart(self) -> None:
        """Start the member again if it waits for a restart."""
        self.awaits_restart = False
        self._restarted.set()

    async def _rejoin_after_restart(self, group: Group) -> bool:
        if not self._restarted.is_set():
            self.awaits_restart = True
            if not len(group.subscribers):
                # No filter reads now, so each message that was pulled would fail and be redelivered.
                group.stop_pulling()
            await self._restarted.wait()
        group.start_pulling()
        return not group.is_ending and self.make() and self.join(group)

    async def _rejoin_later(self, group: Group, started: float) -> bool:
        group.await_members()
        while True:
            now = self._context.clock.monotonic()
            await self._context.clock.sleep_until(now + self._backoff.next_delay(now - started))
            await self._load()
            started = self._context.clock.monotonic()
            if group.is_ending or self._is_stopped:
                # `stop` was called after this task woke. The cancellation takes effect only at the next await.
                return False
            try:
                if self.make() and self.join(group):
                    return True
            except GroupEnded:
                return False

    def withdraw(self, group: Group | None, *, on_purpose: bool) -> None:
        """Leave the group and stop. `on_purpose`: the watchers were deleted, so the pulled events are acked."""
        if group is not None and not group.is_ending:
            if self.subscriber is not None and self.subscriber.is_present:
                if on_purpose:
                    group.subscribers.leave(self.subscriber)
                else:
                    group.subscribers.fail(
                        self.subscriber, PluginError(f"{self.name} was replaced")
                    )
                    group.subscribers.remove_absent(self.source.watchers)
            elif self.is_absent or self.subscriber is not None:
                # Other code may have failed the subscriber before the member's task could set `is_absent`.
                group.subscribers.remove_absent(self.source.watchers)
            if on_purpose:
                group.subscribers.forget(self.source.watchers)
        self.is_absent = False
        self._enter(MemberState.ENDED)
        self.stop()

    def end(self) -> None:
        """Stop for good. Nothing is resolved."""
        self.state = MemberState.ENDED
        self.stop()

    def stop(self) -> None:
        """Cancel the member's task. A task that has not begun yet ends as soon as it begins."""
        self._is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    # Without a stream

    async def serve_standalone(self) -> None:
        """Run the trigger without a shared stream, and restart it whenever it ends, until stopped or cancelled."""
        with anyio.CancelScope() as self._scope:
            while not self._is_stopped:
                started = self._context.clock.monotonic()
                if self.make() and self.trigger is not None:
                    try:
                        await self._run_standalone(self.trigger)
                    finally:
                        await self.discard()
                if not self._context.restarts:
                    return
                now = self._context.clock.monotonic()
                await self._context.clock.sleep_until(now + self._backoff.next_delay(now - started))
                await self._load()

    async def _run_standalone(self, trigger: BaseEventTrigger) -> None:
        self.error = None
        self._enter(MemberState.RUNNING)
        try:
            if has_bookmark(type(trigger)):
                with plugin_code(f"run_from() of {self.name}"):
                    await self._run_from_bookmark(trigger)
            else:
                with plugin_code(f"run() of {self.name}"):
                    await self._runner.run(trigger)
        except Exception as error:
            self._failure_log.add(self.name, error)
            self.record_failure(error)
            return
        self._enter(MemberState.WAITING if self._context.restarts else MemberState.ENDED)

    async def _run_from_bookmark(self, trigger: BaseEventTrigger) -> None:
        await run_from_bookmark(
            trigger,
            name=self.name,
            source=self.source,
            store=self._context.bookmarks,
            pending=self.pending,
        )
