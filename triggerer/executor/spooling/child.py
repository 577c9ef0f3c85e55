"""Writes the events of one run into files: `python -m triggerer.executor.spooling.child`.

Reading a million events takes seconds of processor time. In the service's process, that would block the event loop.
A separate process also returns its memory when it ends.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from triggerer.processes.ipc import connect_to_parent

_PIECE: Final = 20_000


def main() -> None:
    """Write the files that the parent requests, reply, and end. If the parent dies, the kernel kills this process."""
    channel = connect_to_parent()
    order = channel.receive()
    # The garbage collector would take a quarter of the time, and free nothing: the tuples of events form no cycles.
    gc.disable()
    try:
        reply = anyio.run(_write, order)
    except Exception as error:  # noqa: BLE001  (the parent decides, and reads the events in another way)
        reply = {"error": f"{type(error).__name__}: {error}"}
    channel.send(reply)


async def _write(order: dict[str, Any]) -> dict[str, Any]:
    from triggerer.executor.spooling.event_files import EventFiles
    from triggerer.store.database.opening import open_database
    from triggerer.store.database.transactions import Database
    from triggerer.store.events.event_pieces import read_pieces

    async def read(database: Database) -> AsyncIterator[Any]:
        async with database.reading() as session:
            async for piece in read_pieces(session, size=_PIECE, **order["events"]):
                yield piece

    folder = Path(order["folder"])
    async with open_database(order["url"], create=False, pool_size=1) as database:
        files = EventFiles(folder, as_text=order["as_text"])
        await files.write(partial(read, database))
    return {
        "files": [str(path) for path in files.files],
        "rows": files.rows,
        "passes": files.passes,
    }


if __name__ == "__main__":
    main()
