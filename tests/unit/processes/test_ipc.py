"""Frames between the service and its children, however they are cut on their way."""

from __future__ import annotations

import socket

import anyio
import anyio.lowlevel
import pytest

from triggerer.processes.ipc import Channel, ChannelClosed, ChildChannel, _frame


async def _received(channel: Channel, count: int) -> list[bytes]:
    with anyio.fail_after(10):
        return [await channel.receive_bytes() for _ in range(count)]


async def test_frames_that_come_at_once_are_received_one_by_one() -> None:
    channel, theirs = await Channel.open()
    bodies = [b"", b"one", b"x" * 1_000, b"last"]
    with theirs:
        theirs.sendall(b"".join(map(_frame, bodies)))
        assert await _received(channel, len(bodies)) == bodies
    await channel.aclose()


async def test_frames_that_come_byte_by_byte_are_whole() -> None:
    channel, theirs = await Channel.open()
    bodies = [b"one", b"", b"two"]

    async def send(sock: socket.socket) -> None:
        for byte in b"".join(map(_frame, bodies)):
            sock.sendall(bytes([byte]))
            await anyio.lowlevel.checkpoint()

    with theirs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, theirs)
            assert await _received(channel, len(bodies)) == bodies
    await channel.aclose()


async def test_a_large_frame_and_what_follows_it() -> None:
    channel, theirs = await Channel.open()
    large = bytes(range(256)) * 40_000
    async with anyio.create_task_group() as tasks:
        with ChildChannel(theirs) as child:

            def send() -> None:
                child.send_bytes(large)
                child.send_bytes(b"after")

            tasks.start_soon(anyio.to_thread.run_sync, send)
            assert await _received(channel, 2) == [large, b"after"]
    await channel.aclose()


@pytest.mark.parametrize("there", [0, 3, 8, 9])
async def test_a_child_that_goes_in_the_middle_of_a_frame_closes_the_channel(there: int) -> None:
    channel, theirs = await Channel.open()
    with theirs:
        theirs.sendall(_frame(b"body")[:there])
    with pytest.raises(ChannelClosed):
        await _received(channel, 1)
    await channel.aclose()


@pytest.mark.parametrize("there", [1, 8, 9])
def test_a_child_is_told_that_the_service_went_in_the_middle_of_a_frame(there: int) -> None:
    ours, theirs = socket.socketpair()
    with ChildChannel(theirs) as child:
        with ours:
            ours.sendall(_frame(b"body")[:there])
        with pytest.raises(EOFError, match="in the middle"):
            child.receive_bytes()
