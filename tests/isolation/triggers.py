"""Triggers that obey the words in events. Any process can import them, so they can be isolated."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Hashable
from pathlib import Path
from typing import Any, ClassVar

import anyio

from tests.unit.streams.streams import Acking
from triggerer.abc import (
    BaseEventTrigger,
    SharedStreamProducer,
    TriggerEvent,
    reject_shared_stream_event,
)
from triggerer.testing import InMemoryBroker

HERE = "tests.isolation.triggers"


class Stubborn(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class Obeying(Acking):
    """Obeys the word of each event `(number, word)`. A word that is a number says how often the event is yielded."""

    def __init__(self, upstream: str, notes: str, name: str = "one") -> None:
        super().__init__(upstream, name)
        self.notes = Path(notes)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{HERE}.{type(self).__name__}", {
            "upstream": self.upstream,
            "notes": str(self.notes),
            "name": self.name,
        }

    def shared_stream_key(self) -> Hashable:
        return ("obeying", self.upstream)

    def note(self, text: str) -> None:
        with (self.notes / self.name).open("a") as file:
            file.write(f"{text}\n")

    def event(self, number: object) -> TriggerEvent:
        where = {"pid": os.getpid(), "thread": threading.get_ident()}
        return TriggerEvent({"value": number, **where}, partition_key=f"key {number}")

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        try:
            async for number, word in shared_stream:
                answer = await self.obey(word)
                if answer == "return":
                    return
                if answer == "next":
                    continue
                for _ in range(int(word) if word.isdigit() else 1):
                    yield self.event(number)
        except anyio.get_cancelled_exc_class():
            self.note("cancelled")
            raise
        except Exception as error:
            self.note(f"raised {type(error).__name__}")
            raise

    async def obey(self, word: str) -> str:
        match word:
            case "skip":
                return "next"
            case "return":
                return "return"
            case "reject":
                reject_shared_stream_event()
                return "next"
            case "reject in a thread":
                await asyncio.to_thread(reject_shared_stream_event)
                return "next"
            case "raise":
                raise ValueError("boom")
            case "raise on go":
                while not (self.notes / "go").exists():  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                raise ValueError("boom")
            case "raise until mended":
                if not (self.notes / "mended").exists():
                    raise ValueError("boom")
            case "raise stubbornly":
                raise Stubborn("bo", "om")
            case "sys.exit":
                sys.exit(4)
            case "start a child":
                started = await anyio.open_process(["sleep", "60"])
                self.note(str(started.pid))
                await anyio.sleep_forever()
            case "exit":
                os._exit(3)
            case "fork and exit":
                if os.fork() == 0:
                    time.sleep(300)
                os._exit(3)
            case "wait":
                self.note("waits")
                await anyio.sleep_forever()
            case "block":
                self.note("blocks")
                while not (self.notes / "go").exists():
                    time.sleep(0.1)
        return "yield"

    async def cleanup(self) -> None:
        self.note(f"cleanup {os.getpid()} {threading.get_ident()}")


class Deaf(Obeying):
    """Ignores all words but numbers."""

    async def obey(self, word: str) -> str:
        return "yield"


class OfALog(Obeying):
    """Reads a log in memory. The producer runs in the service's process."""

    brokers: ClassVar[dict[str, InMemoryBroker]] = {}
    """The brokers, by the names of the upstreams."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.brokers[kwargs["upstream"]].producer()


class DeafOfALog(OfALog, Deaf):
    pass


class Early(Obeying):
    """Yields an event before it pulls the first message."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        yield self.event("early")
        async for event in super().filter_shared_stream(shared_stream):
            yield event


class Beside(Obeying):
    """Reads the stream in a second task. The filter yields events while the second task waits for the stream."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        send, receive = anyio.create_memory_object_stream[TriggerEvent](10)

        async def read() -> None:
            async for number, _ in shared_stream:
                await send.send(self.event(number))

        reading = asyncio.create_task(read())
        try:
            async for event in receive:
                yield event
        finally:
            send.close()
            receive.close()
            reading.cancel()
            await asyncio.wait([reading])


class NoEvent(Obeying):
    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for _ in shared_stream:
            yield "no event"


class NoGenerator(Obeying):
    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> Any:
        return []


class Unportable(Obeying):
    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for _ in shared_stream:
            yield TriggerEvent({"lock": threading.Lock()})


class MadeHereOnly(Obeying):
    """Raises if it is made in a process whose id is not in the file `pid`."""

    def __init__(self, upstream: str, notes: str, name: str = "one") -> None:
        super().__init__(upstream, notes, name)
        if int((self.notes / "pid").read_text()) != os.getpid():
            raise ValueError("not here")


class Large(Obeying):
    """Yields `count` texts of the event's length for each event `(number, text, count)`."""

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for number, text, count in shared_stream:
            for ordinal in range(count):
                yield TriggerEvent({"value": (number, ordinal), "text": "y" * len(text)})


class Alone(BaseEventTrigger):
    """A trigger without a stream. It yields `count` numbers, then raises, waits or ends, as `then` says."""

    def __init__(self, count: int, then: str = "wait") -> None:
        self.count = count
        self.then = then

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{HERE}.Alone", {"count": self.count, "then": self.then}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        for value in range(self.count):
            yield TriggerEvent({"value": value, "pid": os.getpid()})
        match self.then:
            case "raise":
                raise ValueError("boom")
            case "wait":
                await anyio.sleep_forever()


class YieldsAnOddKey(BaseEventTrigger):
    """Yields an event whose partition key is no string, and cannot be pickled."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{HERE}.YieldsAnOddKey", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent(None, partition_key=lambda: "key")  # type: ignore[arg-type]


class WritesIntoItsChannel(BaseEventTrigger):
    """Writes `data` to every socket of its process, and so to the channel."""

    def __init__(self, data: str) -> None:
        self.data = data

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"data": self.data}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        for name in Path("/proc/self/fd").iterdir():
            try:
                with socket.socket(fileno=os.dup(int(name.name))) as found:
                    found.sendall(bytes.fromhex(self.data))
            except OSError:
                continue
        await anyio.sleep_forever()
        yield TriggerEvent(None)
