"""The route that reads the log of a run: a range, the last bytes, the whole log, or the log as it grows."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Annotated, Final

import anyio
from litestar import Response, Router
from litestar.params import QueryParameter
from litestar.response import Stream

from triggerer.api.access.authorizing import is_access_valid
from triggerer.api.access.roles import Access
from triggerer.api.context import ApiContext
from triggerer.api.gate import part
from triggerer.api.parameters import Api, Caller, InPath
from triggerer.api.routing import reads
from triggerer.api.run_log import GrowingLog, LogPart, open_log, read_whole
from triggerer.domain.runs import RunState
from triggerer.errors import ServerBusy, StoreError, TriggererError, UnknownRun
from triggerer.store.listing.views import RunView
from triggerer.store.runs.listing import list_runs

MOST_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_LOOK_S: Final = 0.5
_ASK_EVERY: Final = 4
_MOST_FOLLOWERS: Final = 32
_LONGEST_S: Final = 3600.0
_REST_S: Final = 30.0
"""How long the API tries to read the rest of a log after the run has ended. The executor's machine may be slow to
answer. If the machine is gone, the copy in the bucket may still be under way."""
_MEDIA_TYPE: Final = "text/plain"


@reads("/dags/{dag_id:str}/dagRuns/{run_id:str}/logs", by_run=True, media_type="text/plain")
async def logs(
    api: Api,
    access: Caller,
    dag_id: InPath,
    run_id: InPath,
    offset: Annotated[int, QueryParameter(ge=0, description="The position of the first byte.")] = 0,
    limit: Annotated[
        int, QueryParameter(ge=1, le=MOST_BYTES, description="The most bytes to send.")
    ] = 65_536,
    tail: Annotated[
        int | None,
        QueryParameter(
            ge=1,
            le=MOST_BYTES,
            description="Send this number of last bytes, in place of offset and limit.",
        ),
    ] = None,
    follow: Annotated[
        bool, QueryParameter(description="Keep sending as the log grows, until the run has ended.")
    ] = False,
    download: Annotated[bool, QueryParameter(description="Send the whole log as a file.")] = False,
) -> Response[bytes]:
    """Read the log of a run.

    The answer has these headers:

    - `X-Log-Offset`: the position of the answer's first byte.
    - `X-Log-Size`: the present size of the log.
    - `X-Run-State`: the run's state. The log may grow until the run has ended.

    If a log is longer than `[logs] max_bytes`, bytes in its middle are removed, and a line says how many. An answer to
    `offset`, `limit` or `tail` may contain zeros instead of the removed bytes. `download` and `follow` leave them out.
    """
    access.require_payloads()
    access.require_run(part(dag_id), part(run_id))
    row = await _find(api, part(dag_id), part(run_id))
    async with open_log(api, row) as log:
        first = await log.read(
            0 if download else offset if tail is None else -tail,
            0 if follow or download else limit if tail is None else tail,
        )
    headers = {
        "X-Log-Size": str(first.size),
        "X-Run-State": row.state,
        "X-Log-Offset": str(first.start),
    }
    if follow:
        api.refuse_followers(_MOST_FOLLOWERS)
        stream = _following(api, access, row, first)
        return Stream(stream, media_type=_MEDIA_TYPE, headers=headers)  # type: ignore[return-value]
    if download:
        headers["Content-Disposition"] = 'attachment; filename="run.log"'
        whole = read_whole(api, row, size=first.size, chunk_bytes=_CHUNK_BYTES)
        return Stream(whole, media_type=_MEDIA_TYPE, headers=headers)  # type: ignore[return-value]
    return Response(first.body, media_type=_MEDIA_TYPE, headers=headers)


async def _find(api: ApiContext, dag_id: str, run_id: str) -> RunView:
    async with api.use.reading() as session:
        found = await list_runs(session, dag=dag_id, run_id=run_id, limit=1)
        if not found:
            raise UnknownRun(dag_id, run_id)
    return found[0]


async def _following(
    api: ApiContext, access: Access, row: RunView, first: LogPart
) -> AsyncIterator[bytes]:
    """Yield the log as it grows, from the start of `first` on.

    The answer ends in these cases:

    - The run has ended, and its whole log was yielded.
    - The client's token or session is no longer valid.
    - The API stops, or an hour has passed.

    A log that replaces the followed log is yielded from its beginning, see `LogPart.is_of_same_log`. An outage of the
    database does not end the answer.

    Raises:
        TriggererError: The run has ended, and the rest of its log cannot be read. Or the run was deleted. The error
            breaks the answer off, so that the client notices that the log is not complete.
    """
    with api.following(_MOST_FOLLOWERS):
        async with open_log(api, row) as log:
            growing = GrowingLog(log, first)
            looks = 0
            deadline = anyio.current_time() + _LONGEST_S
            rest_deadline = math.inf
            while True:
                failure: TriggererError | None = None
                try:
                    while (chunk := await growing.read_on(_CHUNK_BYTES)) is not None:
                        if chunk:
                            yield chunk
                except TriggererError as error:
                    # A run that was queued again has no log yet, or its executor does not answer now.
                    failure = error
                now = anyio.current_time()
                if not RunState(log.row.state).is_final:
                    rest_deadline = math.inf
                elif failure is None:
                    return
                else:
                    rest_deadline = min(rest_deadline, now + _REST_S, deadline)
                    if now > rest_deadline:
                        raise failure
                if now > deadline:
                    return
                with anyio.move_on_after(_LOOK_S):
                    await api.closing.wait()
                    return
                looks += 1
                if looks % _ASK_EVERY == 0:
                    if not await is_access_valid(api, access):
                        return
                    try:
                        log.row = await _find(api, row.dag_id, row.run_id)
                    except (StoreError, ServerBusy):
                        # The next look asks again. A client would take an answer that ends here for a whole log.
                        continue


ROUTER = Router("/", route_handlers=[logs], tags=["Runs"])
