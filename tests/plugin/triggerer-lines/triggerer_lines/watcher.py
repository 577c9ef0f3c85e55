"""Fires for lines that are appended to a directory's `*.lines` files."""

from collections.abc import AsyncIterator, Hashable
from pathlib import Path
from typing import Any

from triggerer import BaseEventTrigger, TriggerEvent, reject_shared_stream_event
from triggerer_lines.producer import Line, LinesSharedStreamProducer


class LineEventTrigger(BaseEventTrigger):
    """Fires for each line that contains `contains`; all triggers on a directory share one reader.

    Args:
        directory: Where the `*.lines` files are.
        contains: None: every line fires.
    """

    def __init__(self, directory: str, *, contains: str | None = None) -> None:
        self.directory = directory
        self.contains = contains

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "triggerer_lines.watcher.LineEventTrigger",
            {"directory": self.directory, "contains": self.contains},
        )

    def shared_stream_key(self) -> Hashable:
        return ("lines", self.directory)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> LinesSharedStreamProducer:
        return LinesSharedStreamProducer(Path(kwargs["directory"]))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Line]
    ) -> AsyncIterator[TriggerEvent]:
        async for line in shared_stream:
            try:
                text = line.raw.decode()
            except UnicodeDecodeError:
                reject_shared_stream_event("it is not UTF-8")  # nobody will ever be able to read it
                continue
            if self.contains is None or self.contains in text:
                yield TriggerEvent({"line": text, "file": line.file, "offset": line.begin})
