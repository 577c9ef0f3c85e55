"""A double of the process that ends left launches."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from triggerer.domain.launches import Launch
from triggerer.processes.ipc import ChannelClosed


class EndingProcess:
    """Stands in for `ChildProcess`. The process reports one launch, and ends."""

    def __init__(self, launch: Launch) -> None:
        self.channel = self
        self._frames = [{"type": "launch", "launch": asdict(launch)}]

    async def start(self, module: str) -> EndingProcess:
        return self

    async def supervise(self) -> None:
        pass

    async def send(self, content: Any) -> None:
        pass

    async def receive(self) -> Any:
        if not self._frames:
            raise ChannelClosed(unread=False)
        return self._frames.pop()

    async def reap(self) -> int:
        return 0

    def kill(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
