"""One group per shared-stream key: hosting triggers, joining and leaving."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio

from triggerer.runtime.context import RuntimeContext
from triggerer.runtime.hosted import HostedState, HostedTrigger, TriggerSpec
from triggerer.runtime.stream import SharedStream


class Manager:
    """Hosts triggers for as long as its `async with` block lasts.

    Leaving the block cancels everything and resolves nothing: what was not advanced is redelivered to the next owner.
    Call `drain` first for an orderly stop. Nothing here raises for what a plugin does: see `HostedTrigger.error`.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._streams: dict[Hashable, SharedStream] = {}
        self._by_id: dict[str, SharedStream] = {}
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
            # The caller's own error leaves as it is, not wrapped in a group.
            await self._stack.__aexit__(None, None, None)
            return None
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def streams(self) -> dict[Hashable, SharedStream]:
        """The streams that have members, by key. Read only."""
        return self._streams

    def add(self, specs: Iterable[TriggerSpec]) -> list[HostedTrigger]:
        """Host these triggers, in the given order.

        Those that belong to a stream which is not open yet form its cohort: all of them have joined, or count as
        absent, before its poll starts. One that cannot be made is retried; it belongs to the stream whose id the
        specification names, where a sibling opens that.
        """
        assert self._tasks is not None, "enter the manager first"
        hosted = [HostedTrigger(spec, self._context) for spec in specs]
        opened: list[SharedStream] = []
        unmade: list[HostedTrigger] = []
        for member in hosted:
            if not member.make():
                unmade.append(member)
            elif member.key is None:
                self._tasks.start_soon(self._serve_alone, member)
            else:
                stream = self._streams.get(member.key)
                if stream is None:
                    stream = self._streams[member.key] = SharedStream(member.key, self._context)
                    opened.append(stream)
                if member.spec.stream_id is not None:
                    self._by_id[member.spec.stream_id] = stream
                stream.add(member)
        for member in unmade:
            known = self._by_id.get(member.spec.stream_id or "")
            if known is not None and known.key in self._streams:
                known.add(member)
            else:
                self._tasks.start_soon(self._retry_making, member)
        for stream in opened:
            self._tasks.start_soon(self._run_stream, stream)
        return hosted

    def remove(self, member: HostedTrigger, *, on_purpose: bool) -> None:
        """Stop a trigger. `on_purpose`: its watcher was deleted; otherwise what it has not resolved is redelivered."""
        stream = self._stream_of(member)
        if stream is not None:
            stream.remove(member, on_purpose=on_purpose)
        else:
            member.withdraw(None, on_purpose=on_purpose)

    def close_stream(self, key: Hashable) -> None:
        """Stop a stream and its members at once and resolve nothing: its lease is lost, or given away."""
        stream = self._streams.pop(key, None)
        if stream is not None:
            stream.scope.cancel()
            for member in list(stream.members):
                member.state = HostedState.ENDED
            stream.members.clear()

    def abandon(self, member: HostedTrigger) -> None:
        """Stop a trigger, and the stream that it belongs to, at once and resolve nothing."""
        if member.is_keyed and member.key is not None and member.key in self._streams:
            self.close_stream(member.key)
        else:
            member.stop()
            member.state = HostedState.ENDED

    async def drain(self, timeout: float, keys: Iterable[Hashable] | None = None) -> None:
        """Pull nothing more and wait, `timeout` seconds at most, until nothing is outstanding.

        Args:
            keys: The streams to drain; all by default.
        """
        chosen = self._streams.keys() if keys is None else keys
        groups = [
            self._streams[key].group
            for key in chosen
            if key in self._streams and self._streams[key].group is not None
        ]
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:
                for group in groups:
                    if group is not None:
                        group.stop_pulling()
                        tasks.start_soon(group.wait_until_drained)

    def _stream_of(self, member: HostedTrigger) -> SharedStream | None:
        for stream in self._streams.values():
            if member in stream.members:
                return stream
        return None

    async def _run_stream(self, stream: SharedStream) -> None:
        with stream.scope:
            try:
                await stream.run()
            finally:
                if self._streams.get(stream.key) is stream:
                    del self._streams[stream.key]
                for stream_id in [i for i, known in self._by_id.items() if known is stream]:
                    del self._by_id[stream_id]

    async def _serve_alone(self, member: HostedTrigger) -> None:
        await member.serve_alone()

    async def _retry_making(self, member: HostedTrigger) -> None:
        """Bring a trigger that could not be made, and has no stream to belong to, into its place once it can be."""
        if not self._context.restarts:
            return
        await member.retry_making()
        if member.state is HostedState.ENDED or member.trigger is None:
            return
        assert self._tasks is not None
        if member.key is None:
            self._tasks.start_soon(self._serve_alone, member)
            return
        stream = self._streams.get(member.key)
        if stream is not None:
            stream.add(member)
            return
        stream = self._streams[member.key] = SharedStream(member.key, self._context)
        if member.spec.stream_id is not None:
            self._by_id[member.spec.stream_id] = stream
        stream.add(member)
        self._tasks.start_soon(self._run_stream, stream)
