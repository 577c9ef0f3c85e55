"""The logs of runs: a range, the end, or as they grow."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import anyio
from anyio import to_thread
from litestar import Response, Router
from litestar.params import QueryParameter
from litestar.response import Stream

from triggerer.api.context import ApiContext
from triggerer.api.gate import part
from triggerer.api.parameters import Api, Caller, InPath
from triggerer.api.routing import reads
from triggerer.domain.runs import RunState
from triggerer.errors import ServerBusy, TriggererError, UnknownRun
from triggerer.operations.run_logs import no_log, unreadable
from triggerer.store.listing.views import RunView
from triggerer.store.runs.listing import list_runs

MOST_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_LOOK_S: Final = 0.5
_ASK_EVERY: Final = 4
_MOST_FOLLOWERS: Final = 32
_LONGEST_S: Final = 3600.0
_MEDIA_TYPE: Final = "text/plain"


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}/logs", by_run=True, media_type="text/plain")
async def logs(
    api: Api,
    access: Caller,
    dag_id: InPath,
    run_id: InPath,
    offset: Annotated[int, QueryParameter(ge=0, description="The first byte.")] = 0,
    limit: Annotated[
        int, QueryParameter(ge=1, le=MOST_BYTES, description="The most bytes.")
    ] = 65_536,
    tail: Annotated[
        int | None,
        QueryParameter(ge=1, le=MOST_BYTES, description="The last bytes, in place of offset."),
    ] = None,
    follow: Annotated[
        bool, QueryParameter(description="Keep sending as the log grows, until the run has ended.")
    ] = False,
    download: Annotated[bool, QueryParameter(description="Send the whole log as a file.")] = False,
) -> Response[bytes]:
    """Read the log of a run, byte for byte.

    The headers `X-Log-Offset` and `X-Log-Size` say where the answer begins and how long the log is now.
    `X-Run-State` says whether it may still grow.
    """
    access.require_payloads()
    access.require_run(part(dag_id), part(run_id))
    row = await _find(api, part(dag_id), part(run_id))
    size = await to_thread.run_sync(_size_of, row)
    start = offset if tail is None else max(0, size - tail)
    headers = {"X-Log-Size": str(size), "X-Run-State": row.state, "X-Log-Offset": str(start)}
    if follow:
        stream = _following(api, row, start)
        return Stream(stream, media_type=_MEDIA_TYPE, headers=headers)  # type: ignore[return-value]
    if download:
        headers["X-Log-Offset"] = "0"
        headers["Content-Disposition"] = 'attachment; filename="run.log"'
        return Stream(_whole(row, size), media_type=_MEDIA_TYPE, headers=headers)  # type: ignore[return-value]
    wanted = limit if tail is None else tail
    body = await to_thread.run_sync(_read, row, start, wanted)
    return Response(body, media_type=_MEDIA_TYPE, headers=headers)


async def _find(api: ApiContext, dag_id: str, run_id: str) -> RunView:
    async with api.use.reading() as session:
        found = await list_runs(session, dag=dag_id, run_id=run_id, limit=1)
        if not found:
            raise UnknownRun(dag_id, run_id)
    return found[0]


def _size_of(row: RunView) -> int:
    """Return the size of the log.

    Raises:
        TriggererError: There is no log here, or it cannot be read.
    """
    if row.log_path is None:
        raise no_log(row)
    try:
        return Path(row.log_path).stat().st_size
    except FileNotFoundError as error:
        raise no_log(row) from error
    except OSError as error:
        raise unreadable(row, error) from error


def _read(row: RunView, start: int, most: int) -> bytes:
    assert row.log_path is not None
    try:
        with Path(row.log_path).open("rb") as log:
            log.seek(start)
            return log.read(most)
    except OSError as error:
        raise unreadable(row, error) from error


async def _whole(row: RunView, size: int) -> AsyncIterator[bytes]:
    sent = 0
    while sent < size:
        chunk = await to_thread.run_sync(_read, row, sent, min(_CHUNK_BYTES, size - sent))
        if not chunk:
            return
        sent += len(chunk)
        yield chunk


async def _following(api: ApiContext, row: RunView, start: int) -> AsyncIterator[bytes]:
    """Yield what the log has from `start` on, until the run has ended, the process stops, or an hour is over."""
    with api.following(_MOST_FOLLOWERS):
        looks = 0
        deadline = anyio.current_time() + _LONGEST_S
        while True:
            while chunk := await to_thread.run_sync(_read_if_there, row, start):
                start += len(chunk)
                yield chunk
            if RunState(row.state).is_final or anyio.current_time() > deadline:
                return
            with anyio.move_on_after(_LOOK_S):
                await api.closing.wait()
                return
            looks += 1
            if looks % _ASK_EVERY == 0:
                try:
                    row = await _find(api, row.dag_id, row.run_id)
                except ServerBusy:
                    continue
                except TriggererError:
                    # The run was deleted, or the database is away. The reader asks again.
                    return


def _read_if_there(row: RunView, start: int) -> bytes:
    if row.log_path is None or not os.path.exists(row.log_path):  # noqa: PTH110
        return b""
    return _read(row, start, _CHUNK_BYTES)


ROUTER = Router("/", route_handlers=[logs], tags=["Runs"])
