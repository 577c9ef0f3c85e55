"""Pulls events from the iterators of Airflow's classes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from watchers.airflow.threads import StreamThread


class _Pulled:
    """An iterator whose steps make their blocking calls in the stream's thread."""

    def __init__(self, iterator: AsyncIterator[Any], thread: StreamThread) -> None:
        self._iterator = iterator
        self._thread = thread

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        with self._thread.used():
            return await self._iterator.__anext__()


@asynccontextmanager
async def pulling(iterator: AsyncIterator[Any], thread: StreamThread) -> AsyncIterator[Any]:
    """Yield a wrapper of `iterator` that makes blocking calls in the stream's thread. At the end, close `iterator`."""
    try:
        yield _Pulled(aiter(iterator), thread)
    finally:
        if (aclose := getattr(iterator, "aclose", None)) is not None:
            with thread.used():
                await aclose()
