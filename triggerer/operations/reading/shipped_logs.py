"""Reads the copy of a run's log in the bucket of `[logs] ship`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from triggerer.domain.runs import RunState
from triggerer.processes.instance_ids import host_and_pid
from triggerer.shipped_logs.bucket import Bucket, ObjectPart, open_bucket, require_sdk
from triggerer.shipped_logs.destinations import LogDestination

if TYPE_CHECKING:
    from triggerer.store.listing.views import RunView

_CHUNK_BYTES: Final = 1024 * 1024


class LogCopy:
    """The copy of one run's log. It may not exist."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key

    async def read(self, start: int, limit: int) -> ObjectPart | None:
        """Return up to `limit` bytes from `start` on, or None if there is no copy.

        Args:
            start: The position of the first byte. A negative number counts from the end.
        Raises:
            BucketError: The bucket refuses, or does not answer.
        """
        return await self._bucket.read(self._key, start, limit)

    async def read_all(self) -> AsyncIterator[bytes]:
        """Yield the whole copy in parts; nothing if there is no copy.

        Raises:
            BucketError: The bucket refuses, or does not answer.
        """
        start = 0
        while (part := await self.read(start, _CHUNK_BYTES)) is not None and part.body:
            yield part.body
            start += len(part.body)


def copy_url(ship: str, row: RunView) -> str | None:
    """Return the URL where the copy of a run's log is, or soon will be.

    None: logs are not copied, the run has not ended, or no executor has executed the run.

    Args:
        ship: `[logs] ship`.
    """
    if not ship or row.executor is None or not RunState(row.state).is_final:
        return None
    destination = LogDestination.of(ship)
    return destination.url_of(_key_of(destination, row))


@asynccontextmanager
async def open_copy(ship: str, row: RunView) -> AsyncIterator[LogCopy | None]:
    """Yield the copy of a run's log. None: there is no copy, see `copy_url`.

    Args:
        ship: The setting `[logs] ship`.
    Raises:
        ConfigurationError: The SDK of the bucket is not installed.
        BucketError: The SDK finds no region, or the configured profile does not exist.
    """
    if copy_url(ship, row) is None:
        yield None
        return
    require_sdk()
    destination = LogDestination.of(ship)
    async with open_bucket(destination.bucket) as bucket:
        yield LogCopy(bucket, _key_of(destination, row))


def _key_of(destination: LogDestination, row: RunView) -> str:
    assert row.executor is not None
    host, _ = host_and_pid(row.executor)
    return destination.key_of(host, row.dag_id, row.run_id)
