"""The API as a child of `standalone`: `python -m triggerer.api.child`."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import signal
import socket
import threading
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
import structlog

from triggerer.processes.ipc import ChildChannel, connect_to_parent
from triggerer.processes.priority import give_way
from triggerer.processes.signals import handling_stop_signals

if TYPE_CHECKING:
    from triggerer.config import Settings
    from triggerer.store.database.transactions import Database

_log = structlog.get_logger(__name__)

_NICENESS: Final = 10
"""The niceness of the API's process, higher than a worker's. If processors are scarce, streams and runs get processor
time before the API's requests do.
"""
ANNOUNCED: Final = "announced"
"""The key under which a message to the child has the parent's wake-ups. The value maps the name of each signal to the
signal's subjects, such as DAG ids.
"""


def order_of(settings: Settings, listener: socket.socket) -> dict[str, Any]:
    """Return the first message to the child process: the settings and the socket's descriptor.

    The settings contain secrets. Only the child can read the channel on which the message is sent.
    """
    return {
        "settings": base64.b64encode(
            pickle.dumps(replace(settings, environ=dict(settings.environ)))
        ).decode(),
        "listener": listener.fileno(),
    }


def main() -> NoReturn:
    """Serve until SIGTERM. If the parent dies in any way, the kernel ends this process too."""
    channel = connect_to_parent()
    order = channel.receive()
    from triggerer.observability.logging_setup import set_up_logging

    # Unpickling is safe here, because only our own parent can write to this channel.
    settings: Settings = pickle.loads(base64.b64decode(order["settings"]))
    settings.remember_secrets()
    set_up_logging(settings.core)
    with socket.socket(fileno=order["listener"]) as listener:
        listener.setblocking(False)
        anyio.run(
            partial(_run, settings, listener, channel),
            backend_options={"use_uvloop": find_spec("uvloop") is not None},
        )
    # Everything is closed, so exit at once. At a normal exit, Python would first free all objects. On a busy machine,
    # this low-priority process would need seconds to free them, and the service would wait.
    logging.shutdown()
    os._exit(0)


async def _run(settings: Settings, listener: socket.socket, channel: ChildChannel) -> None:
    import asyncio

    from triggerer.api.context import POOL_SIZE
    from triggerer.api.serving import serve
    from triggerer.store.database.opening import open_database

    loop = asyncio.get_running_loop()

    def obey(signum: int) -> None:
        _log.info("the API stops", signal=signal.Signals(signum).name)
        stop.cancel()

    def tell(signum: int) -> None:
        loop.call_soon_threadsafe(obey, signum)

    with (
        handling_stop_signals(tell),
        anyio.CancelScope() as stop,
    ):
        async with open_database(
            settings.database.url,
            home=settings.core.home,
            create=False,
            commit_timeout=settings.database.commit_timeout,
            pool_size=POOL_SIZE,
        ) as database:
            threading.Thread(
                target=_hear, args=(channel, loop, database), name="triggerer-channel", daemon=True
            ).start()
            # Lower the priority only after the start, so that the API starts quickly even on a busy machine.
            await serve(settings, database, listener, on_start=partial(give_way, _NICENESS))


def _hear(channel: ChildChannel, loop: Any, database: Database) -> None:
    """Receive the parent's wake-ups, and publish them in this process, until the parent closes the channel."""
    from triggerer.store.database.wakeups.signals import Signal

    while True:
        try:
            frame = channel.receive()
        except (EOFError, OSError):
            return
        for name, subjects in frame.get(ANNOUNCED, {}).items():
            loop.call_soon_threadsafe(partial(database.wakeups.publish, Signal(name), *subjects))


if __name__ == "__main__":
    main()
