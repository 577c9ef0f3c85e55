"""A stream of hints for each open page of a browser. A hint names changed objects, which the page then loads again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import anyio
import orjson
from litestar import Router
from litestar.response import ServerSentEvent, ServerSentEventMessage

from triggerer.api.access.authorizing import is_access_valid
from triggerer.api.access.roles import Access
from triggerer.api.context import ApiContext
from triggerer.api.parameters import Api, Caller
from triggerer.api.routing import reads
from triggerer.store.database.wakeups.signals import ALL, Signal, Subscription

_COALESCE_S: Final = 1.0
_HEARTBEAT_S: Final = 15.0
"""How often a client receives `alive`, and its token or session is checked."""
_LONGEST_S: Final = 3600.0
_MOST_SUBJECTS: Final = 200
_MOST_STREAMS: Final = 500
_TOPICS: Final = {
    Signal.EVENTS_QUEUED: "events",
    Signal.RUNS_QUEUED: "runs",
    Signal.RUNS_ENDED: "runs",
    Signal.BACKFILLS_CHANGED: "backfills",
    Signal.DAGS_CHANGED: "dags",
    Signal.STREAMS_CHANGED: "streams",
}
"""Signal -> the key under which a hint lists the changed objects. "streams" lists ids of streams, other keys ids of
DAGs.
"""


@reads("/changes", media_type="text/event-stream")
async def changes(api: Api, access: Caller) -> ServerSentEvent:
    """Send server-sent events that name changed objects, at most one a second.

    - `changes` has data such as `{"runs": ["dag_a"], "streams": ["<id>"]}`. The keys are `runs`, `events`, `dags`,
      `backfills` and `streams`; a key without changes is missing. `streams` lists ids of streams, and the other keys
      list ids of DAGs. `["*"]` means all.
    - `alive` comes at the start, and every 15 seconds.

    The answer ends after an hour, when the server stops, or within 15 seconds after the token has become invalid. The
    client should then connect again.
    """
    api.refuse_followers(_MOST_STREAMS)
    return ServerSentEvent(hints(api, access))


async def hints(api: ApiContext, access: Access) -> AsyncIterator[ServerSentEventMessage]:
    """Yield the server-sent events for one open page."""
    with (
        api.following(_MOST_STREAMS),
        api.database.wakeups.subscribe(*_TOPICS) as subscription,
    ):
        began = anyio.current_time()
        next_hint, next_look = began, began + _HEARTBEAT_S
        yield ServerSentEventMessage(event="alive", data="{}", retry=2000)
        while not api.closing.is_set() and anyio.current_time() < began + _LONGEST_S:
            hint = await _hint_between(api, subscription, next_hint, next_look)
            if hint:
                next_hint = anyio.current_time() + _COALESCE_S
                yield ServerSentEventMessage(event="changes", data=orjson.dumps(hint).decode())
            elif not api.closing.is_set():
                next_look = anyio.current_time() + _HEARTBEAT_S
                if not await is_access_valid(api, access):
                    return
                yield ServerSentEventMessage(event="alive", data="{}")


async def _hint_between(
    api: ApiContext, subscription: Subscription, earliest: float, latest: float
) -> dict[str, list[str]]:
    """Wait for a change. Return the changed ids by topic; empty if the API stops, or no change came in time.

    Args:
        earliest: Do not return a change before this instant of `anyio.current_time`.
        latest: Return at this instant of `anyio.current_time` even if there is no change.
    """
    announced: dict[Signal, set[str]] = {}

    async def wait() -> None:
        nonlocal announced
        await anyio.sleep_until(earliest)
        announced = await subscription.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        with anyio.CancelScope(deadline=latest):
            await api.closing.wait()
        tasks.cancel_scope.cancel()
    found: dict[str, set[str]] = {}
    for signal, subjects in announced.items():
        found.setdefault(_TOPICS[signal], set()).update(subjects)
    return {
        topic: [ALL] if ALL in subjects or len(subjects) > _MOST_SUBJECTS else sorted(subjects)
        for topic, subjects in found.items()
    }


ROUTER = Router("/", route_handlers=[changes], tags=["Service"])
