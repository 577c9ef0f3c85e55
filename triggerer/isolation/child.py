"""The code of an isolated trigger's process: `python -m triggerer.isolation.child`, started by `TriggerProcess`.

The main thread runs an event loop with the plugin's code. If this code blocks the loop, two other threads still read
and write the channel to the service.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import signal
import threading
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

import anyio

from triggerer.isolation.messages import Report, Setup, Terminated
from triggerer.isolation.pickling import from_frame, in_frames, pack, to_frame, unpack
from triggerer.isolation.trigger_server import TriggerServer
from triggerer.observability.logging_setup import set_up_logging
from triggerer.plugins import load_trigger_class
from triggerer.processes.ipc import ChildChannel, connect_to_parent
from triggerer.processes.lifelines import kill_own_group

_MOST_AT_ONCE: Final = 256


class _Ended:
    """The last object in the queue of reports. It ends the thread that writes them."""


def main() -> NoReturn:
    """Run the trigger for the service that started this process, until the service ends it."""
    channel = connect_to_parent()
    setup: Setup = pickle.loads(channel.receive_bytes())
    if setup.log is not None:
        set_up_logging(setup.log)
    reports: queue.SimpleQueue[Report | _Ended] = queue.SimpleQueue()
    writer = threading.Thread(
        target=write, args=(channel, reports), name="triggerer-writer", daemon=True
    )
    writer.start()
    try:
        anyio.run(_serve, setup, channel, reports)
    except BaseException as error:  # noqa: BLE001  (the process ends here: the service gets the error)
        reports.put(Terminated(error))
    reports.put(_Ended())
    writer.join()
    # sys.exit() would wait for threads that the plugin has left running, and such a thread may be blocked for ever.
    os._exit(0)


async def _serve(
    setup: Setup, channel: ChildChannel, reports: queue.SimpleQueue[Report | _Ended]
) -> None:
    cls = load_trigger_class(
        setup.classpath, dags_folder=setup.dags_folder, allowed_modules=setup.allowed_modules
    )
    server = TriggerServer(
        cls(**setup.kwargs),
        setup.name,
        report=reports.put,
        pack=partial(pack, name=setup.name, what="the payload of an event"),
        unpack=partial(unpack, name=setup.name, what="a raw event"),
        size_of=len,
    )
    threading.Thread(
        target=_read, args=(channel, server), name="triggerer-reader", daemon=True
    ).start()
    interrupted = anyio.Event()
    # With `signal.signal`, a SIGINT that comes just before the loop waits would not wake the loop.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    async with anyio.create_task_group() as tasks:

        async def end_when_interrupted() -> None:
            await interrupted.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_when_interrupted)
        await server.serve()
        tasks.cancel_scope.cancel()
    if interrupted.is_set():
        raise KeyboardInterrupt


def _read(channel: ChildChannel, server: TriggerServer) -> None:
    while True:
        try:
            commands = from_frame(channel.receive_bytes())
        except (EOFError, OSError):
            # The service has closed the channel or is gone, so nobody needs the plugin's results.
            kill_own_group()
            return
        for command in commands:
            server.commands.put(command)


def write(channel: ChildChannel, reports: queue.SimpleQueue[Report | _Ended]) -> None:
    """Write reports into the channel, until `_Ended` comes, a report cannot be pickled, or the channel is closed."""
    while True:
        chunk = [reports.get()]
        while len(chunk) < _MOST_AT_ONCE and not reports.empty():
            chunk.append(reports.get())
        sent = [report for report in chunk if not isinstance(report, _Ended)]
        try:
            for frame in in_frames(sent):
                channel.send_bytes(to_frame(frame))
        except OSError:
            return  # the thread in `_read` notices a closed channel too, and ends the process
        except Exception as error:  # noqa: BLE001  (pickling calls the plugin's code, which may raise anything)
            # Without this last report the service would wait for ever.
            with suppress(OSError):
                channel.send_bytes(to_frame([Terminated(error)]))
            return
        if len(sent) < len(chunk):
            return


if __name__ == "__main__":
    main()
