"""The manager hosts triggers. Triggers with equal stream keys share one stream; a trigger without a key runs alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio

from triggerer.domain.events import EventSource
from triggerer.domain.watchers.lane_positions import ReplayEnd, ReplayRequest
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.streams.catchup.backlogs.replays import not_a_log
from triggerer.streams.catchup.reading.replayed_messages import give_back
from triggerer.streams.context import RuntimeContext
from triggerer.streams.supervision.member import Member, TriggerSpec
from triggerer.streams.supervision.stream import SharedStream


def _ignore(_: Member) -> None:
    pass


def _ignore_answer(_: Exception | None) -> None:
    """Ignore whether a refused replay's row was deleted. If the row remains, the next owner refuses the replay."""


class Manager:
    """Hosts triggers for as long as its `async with` block lasts.

    Leaving the block cancels everything and resolves nothing, so the broker redelivers outstanding messages. For an
    orderly stop, call `drain` first. A plugin's error is in `Member.error`; no method raises it.

    Args:
        on_state: Called after every change of a trigger's state; synchronous, and must not raise.
    """

    def __init__(
        self, context: RuntimeContext, on_state: Callable[[Member], None] = _ignore
    ) -> None:
        self._context = context
        self._on_state = on_state
        self._streams: dict[Hashable, SharedStream] = {}
        self._by_id: dict[str, SharedStream] = {}
        self._ending: dict[Hashable, SharedStream] = {}
        """Streams that were closed and whose tasks have not ended, by key."""
        self._unmade: dict[str | None, dict[Member, None]] = {}
        """Triggers that could not be made yet, and whose stream no other trigger has opened; by the id of the stream.
        """
        self._standalone: dict[Member, None] = {}
        self._stack = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        if isinstance(error, Exception):
            # The caller's own error is raised unchanged, not wrapped in an exception group.
            await self._stack.__aexit__(None, None, None)
            return None
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def streams(self) -> dict[Hashable, SharedStream]:
        """The streams that have members, by key. Read only."""
        return self._streams

    @property
    def streams_by_id(self) -> dict[str, SharedStream]:
        """The streams that have members, by the digest of their key. Read only."""
        return self._by_id

    def add(self, specs: Iterable[TriggerSpec]) -> list[Member]:
        """Host these triggers, in the given order.

        Before the poll of a new stream starts, each trigger of the stream has joined or counts as absent. So no trigger
        loses a message. A trigger that cannot be made is an absent member of the stream that `TriggerSpec.stream_id`
        names. The manager tries again after a delay.
        """
        assert self._tasks is not None, "enter the manager first"
        members = [Member(spec, self._context, self._on_state) for spec in specs]
        for member in members:
            if member.make():
                self._start_member(member)
            else:
                self._await_making(member)
        for stream in self._streams.values():
            # By now every replaced trigger has been added again. So if no trigger of this stream serves a watcher, the
            # watcher has moved to another stream.
            stream.behind.forget_unserved()
        return members

    def remove(self, member: Member, *, on_purpose: bool) -> None:
        """Stop a trigger.

        Args:
            on_purpose: True: the trigger's watchers were deleted, so the events that the trigger received are acked.
                False: the trigger will be replaced, so its unresolved events count as failed.
        """
        self._unmade.get(member.spec.stream_id, {}).pop(member, None)
        stream = self._stream_of(member)
        if stream is not None:
            stream.remove(member, on_purpose=on_purpose)
        else:
            member.withdraw(None, on_purpose=on_purpose)

    def replace_source(self, member: Member, source: EventSource, *, name: str) -> None:
        """Send a trigger's events to other watchers from now on.

        Call this only if the watchers that the trigger no longer serves were deleted.

        Args:
            name: The trigger's new name in logs and errors.
        """
        stream = self._stream_of(member)
        if stream is not None:
            stream.behind.replace_source(member, source, name=name)
        else:
            member.replace_source(source, name=name)

    def rewind(self, member: Member, requests: Iterable[ReplayRequest]) -> None:
        """Carry out replays for a trigger's watchers once its stream is open. Failures are in `Member.replay_errors`.

        Args:
            requests: All open replays of the trigger's watchers. A request that was in an earlier call is not carried
                out again.
        """
        requests = tuple(requests)
        new = [request for request in requests if request not in member.replays]
        member.replays = requests
        stream = self._stream_of(member)
        if stream is not None:
            stream.behind.rewind(member, requests)
        elif member.is_keyed and member.key is None:
            self._refuse_replays(member, new)

    def _refuse_replays(self, member: Member, requests: Iterable[ReplayRequest]) -> None:
        fence, sink = member.source.fence, self._context.positions
        for request in requests:
            member.record_replay_failure(request.watcher_id, not_a_log())
            if fence is not None and sink is not None:
                sink.end_replay_nowait(
                    ReplayEnd(fence, request.watcher_id, request.id, _ignore_answer)
                )

    def restart(self, member: Member) -> None:
        """Start a failed trigger again. Needed only in the testing harness, where nothing restarts automatically."""
        stream = self._stream_of(member)
        if stream is not None:
            stream.behind.restart(member)

    def replay_parked(self, member: Member, lanes: Collection[StoredBacklog]) -> None:
        """Let the trigger's watchers process the parked messages of these lanes, because an operator replays them."""
        stream = self._stream_of(member)
        if stream is not None and lanes:
            stream.behind.replay_parked(member, lanes)
        elif member.is_keyed and member.key is None:
            self._give_back(member, lanes)

    def _give_back(self, member: Member, lanes: Collection[StoredBacklog]) -> None:
        fence, parked = member.source.fence, self._context.parked
        watcher_ids = {one.watcher_id for one in lanes}
        if self._tasks is not None and fence is not None and parked is not None:
            for watcher in member.source.watchers:
                if watcher.watcher_id in watcher_ids:
                    self._tasks.start_soon(give_back, watcher, fence, parked)

    def close_stream(self, key: Hashable) -> None:
        """Stop a stream and its members at once, because its lease was lost or released.

        The stream's outstanding events stay unresolved, so the broker delivers their messages to the next owner.
        """
        stream = self._streams.get(key)
        if stream is not None:
            self._forget(stream)
            self._ending[key] = stream
            stream.close()

    def close_stream_known_as(self, stream_id: str) -> None:
        """Close the stream with this id, as `close_stream` does by key.

        The id also finds a stream that all members have left, while the stream's last events are being resolved.
        """
        stream = self._by_id.get(stream_id)
        if stream is not None:
            self.close_stream(stream.key)

    def abandon(self, member: Member) -> None:
        """Stop a trigger and its stream at once. The outstanding events stay unresolved."""
        self._unmade.get(member.spec.stream_id, {}).pop(member, None)
        if member.stream_key is not None:
            self.close_stream(member.stream_key)
        else:
            member.end()

    async def drain(self, timeout: float, members: Iterable[Member] | None = None) -> None:
        """Stop pulling messages. Wait until all pulled messages are advanced and the store has answered.

        Args:
            timeout: The longest wait, in seconds. After this time `drain` returns even if messages are outstanding.
            members: The triggers to drain, with their streams. None: all.
        """
        if members is None:
            streams, standalone = list(self._streams.values()), list(self._standalone)
        else:
            found = {member: self._stream_of(member) for member in members}
            streams = list({stream: None for stream in found.values() if stream is not None})
            standalone = [member for member, stream in found.items() if stream is None]
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:
                for member in standalone:
                    member.pending.close()
                    tasks.start_soon(member.pending.wait_until_empty)
                for stream in streams:
                    tasks.start_soon(stream.drain)

    # Starting

    def _stream_of(self, member: Member) -> SharedStream | None:
        return None if member.stream_key is None else self._streams.get(member.stream_key)

    def _start_member(self, member: Member) -> None:
        """Start a trigger that has been made: in its stream, or on its own."""
        assert self._tasks is not None
        if member.key is None:
            self._tasks.start_soon(self._serve_standalone, member, name=member.task_name)
            return
        stream = self._streams.get(member.key)
        if stream is None:
            stream = self._streams[member.key] = SharedStream(member.key, self._context)
            # The stream's task begins after this loop tick, when all triggers of this call of `add` are members.
            self._tasks.start_soon(self._run_stream, stream, self._ending.get(member.key))
        stream_id = member.spec.stream_id
        if stream_id is not None:
            self._by_id[stream_id] = stream
            for sibling in self._unmade.pop(stream_id, ()):
                stream.add(sibling)
        stream.add(member)

    def _await_making(self, member: Member) -> None:
        stream_id = member.spec.stream_id
        if stream_id is not None and stream_id in self._by_id:
            self._by_id[stream_id].add(member)
            return
        assert self._tasks is not None
        self._unmade.setdefault(stream_id, {})[member] = None
        self._tasks.start_soon(self._retry_making, member, name=member.task_name)

    async def _retry_making(self, member: Member) -> None:
        """Try to make the trigger until it is made or removed, or until another trigger opens the same stream."""
        stream_id = member.spec.stream_id
        while self._context.restarts:
            await member.wait_for_retry()
            if member not in self._unmade.get(stream_id, ()):
                return
            if member.make():
                del self._unmade[stream_id][member]
                self._start_member(member)
                return

    def _forget(self, stream: SharedStream) -> None:
        if self._streams.get(stream.key) is stream:
            del self._streams[stream.key]
        for stream_id in [i for i, known in self._by_id.items() if known is stream]:
            del self._by_id[stream_id]

    # Serving

    async def _run_stream(self, stream: SharedStream, predecessor: SharedStream | None) -> None:
        if predecessor is not None:
            # A key has one poll at a time. So wait until the closed stream with this key has closed its producer.
            await predecessor.ended.wait()
        try:
            with stream.scope:
                await stream.run()
        finally:
            self._forget(stream)
            if self._ending.get(stream.key) is stream:
                del self._ending[stream.key]
            stream.ended.set()

    async def _serve_standalone(self, member: Member) -> None:
        self._standalone[member] = None
        try:
            await member.serve_standalone()
        finally:
            del self._standalone[member]
