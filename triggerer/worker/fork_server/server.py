"""The worker's main process: it forks a process for each run, and never runs users' code.

The server has one thread, because a fork copies only the thread that calls it. Each run's process has its own channel
to the executor, so that no leftover process of a run can send messages for the next run.

1. The server forks a process with the role `NEXT`, and sends the process's channel to the executor.
2. The server sends `go` to `NEXT` once the previous run's process and its descendants are gone. Then `NEXT` attaches to
   the Spark driver, if there is one, and waits for an order.
3. `NEXT` receives an order, sends `accepted`, and has the role `RUN` from then on. The server forks another `NEXT`.
4. `RUN` ends. The server kills the process group of `RUN`, and all other descendants of `RUN`, which it has adopted.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NoReturn

from triggerer.plugins import DagsFolder
from triggerer.processes.descendants import adopt_orphans, end_children
from triggerer.processes.ipc import ChildChannel
from triggerer.processes.lifelines import arm_again, die_with_writer, kill_own_group
from triggerer.worker.fork_server.children import Child, Role
from triggerer.worker.fork_server.control import Control, Message
from triggerer.worker.fork_server.driver_keeper import DriverKeeper
from triggerer.worker.fork_server.preloading import Preloaded
from triggerer.worker.fork_server.timers import Timers
from triggerer.worker.protocol import message
from triggerer.worker.run_process import RunProcess

logger = logging.getLogger(__name__)

_STANDARD_ERROR: Final = 2
_FORK_AFTER_S: Final = 0.02
"""The next process is forked this long after an order came, because a fork slows the run's process for a moment."""
_FORK_AGAIN_S: Final = 1.0
_LOOK_AT_LOG_S: Final = 1.0
"""How often the size of a run's log is compared with its limit."""
_LEFT_BEHIND_S: Final = 2.0
_DAMAGED_S: Final = 1.0
_FINISHING_S: Final = 5.0
"""A run's process that has not ended this long after its last report is killed."""


class ForkServer:
    """One worker. `serve` runs in its only thread."""

    def __init__(self, channel: ChildChannel, setup: dict[str, Any]) -> None:
        self._channel = channel
        self._setup = setup
        self._selector = selectors.DefaultSelector()
        self._timers = Timers()
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._dead: list[tuple[int, int]] = []
        self._next: Child | None = None
        self._run: Child | None = None
        self._file_states: dict[str, dict[str, Any]] = {}
        self._left_folders: list[str] = []
        self._preloaded = Preloaded(setup["spark"])
        self._dags_folder = DagsFolder(setup["dags_folder"])
        self._drivers = DriverKeeper(self, setup)
        # When this process is gone, the lifeline's writing end (`_alive`) closes, and the kernel kills the processes of
        # runs.
        self._lifeline, self._alive = os.pipe()
        self._wakeup, self._wake = os.pipe()

    def serve(self) -> NoReturn:
        """Fork processes until the executor ends this process, or is gone."""
        adopt_orphans()
        self._listen_for_signals()
        self._watch(self._channel, self._read_channel)
        self._channel.send(message("ready"))
        self._fork_next()
        if self._channel.has_more:
            # The channel has read a frame together with the setup. The selector does not report such a frame.
            self._read_channel()
        while True:
            for key, _ in self._selector.select(self._timers.wait_s):
                # An earlier call of this round may have closed this descriptor.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._reap()
            while self._dead:
                self._on_end(*self._dead.pop(0))
            self._timers.run_due()

    # Called by `DriverKeeper`.

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a frame to the executor."""
        self._channel.send(message(kind, **fields))

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self._timers.after(seconds, function)

    def watch(self, descriptor: int, on_ready: Callable[[], None]) -> None:
        self._watch(descriptor, on_ready)

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def fork_opener(self, live: Callable[[Control], None]) -> Child:
        """Fork a process that opens a driver.

        Raises:
            OSError: No process can be forked.
        """
        return self._fork(Role.OPENER, live)

    def show(self, lines: bytes) -> None:
        """Write the driver's output into the log of the present run; without a run, to our own standard error."""
        log = self._run.log if self._run is not None else None
        with suppress(OSError):
            os.write(_STANDARD_ERROR if log is None else log, lines)

    @property
    def next(self) -> Child | None:
        """The process that waits for an order."""
        return self._next

    def replace_next(self) -> None:
        """Replace the process that waits for an order, because its imports or its driver are out of date."""
        if self._next is not None:
            self._next.is_leaving = True
            self._next.control.send("leave")

    def preload(self, names: Iterable[str]) -> None:
        """Import modules for the processes that are forked from now on."""
        if self._preloaded.add(names):
            self.replace_next()

    def is_child(self, child: Child) -> bool:
        return self._children.get(child.pid) is child

    # The event loop.

    def _watch(self, source: Any, on_ready: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, on_ready)

    def _listen_for_signals(self) -> None:
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake_up)
        # When the service is stopped, all its processes may receive SIGTERM. During a run, this process ignores the
        # signal: the end of this process would kill the run's process.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._watch(self._wakeup, self._drain)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wakeup, 512):
                pass

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if self._run is None:
            os._exit(128 + number)

    def _read_channel(self) -> None:
        while True:
            try:
                frame = self._channel.receive()
            except (EOFError, OSError):
                # The executor is gone. Kill this process and the JVM; the lifeline ends the processes of runs.
                kill_own_group()
                return
            child = self._numbered(frame.get("process"))
            match frame["type"]:
                case "warm":
                    self._drivers.warm()
                case "stop" if child is not None:
                    child.signal(signal.SIGTERM)
                case "kill" if child is not None:
                    child.kill()
            if not self._channel.has_more:
                return

    def _numbered(self, number: int | None) -> Child | None:
        return next((one for one in self._children.values() if one.number == number), None)

    # Forking processes.

    def _fork(self, role: Role, live: Callable[[Control], None]) -> Child:
        ours, theirs = Control.pair()
        self._dags_folder.look_ahead()
        # Let garbage collections in the child skip all present objects. A collection writes to the objects that it
        # examines, so the kernel would have to copy the memory that parent and child share.
        gc.freeze()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            ours.close()
            self._live(role, live, theirs)
        theirs.close()
        if role is not Role.OPENER:
            # The child calls `setpgid`, too, but perhaps only later. The server must be able to kill the group from now
            # on.
            with suppress(OSError):
                os.setpgid(pid, pid)
        child = Child(next(self._numbers), pid, ours, role)
        self._children[pid] = child
        self._watch(ours, lambda: self._read_control(child))
        return child

    def _live(self, role: Role, live: Callable[[Control], None], control: Control) -> NoReturn:
        """Run the child's code in the forked process, and end the process."""
        code = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._close_in_child()
            if role is not Role.OPENER:
                # A run's process leads its own group. An opener stays in the worker's group, because its JVM must be
                # killed with the worker.
                os.setpgid(0, 0)
                arm_again()
                die_with_writer(self._lifeline)
            live(control)
            code = 0
        except BaseException:
            logger.exception("a process of this worker ended")
        finally:
            os._exit(code)

    def _close_in_child(self) -> None:
        self._channel.close()
        self._selector.close()
        for descriptor in (self._wakeup, self._wake, self._alive):
            os.close(descriptor)
        for child in self._children.values():
            child.close()
        self._drivers.close_in_child()

    def _fork_next(self) -> None:
        if self._next is not None:
            return
        ours, theirs = socket.socketpair()
        try:
            with theirs:

                def live(control: Control) -> None:
                    ours.close()
                    RunProcess(ChildChannel(theirs), control, self._setup).live()

                self._next = self._fork(Role.NEXT, live)
            prepared = message("prepared", process=self._next.number, pid=self._next.pid)
            self._channel.send_descriptor(prepared, ours.fileno())
        except OSError as error:
            logger.warning("no process can be forked; it is tried again: %s", error)
            self.after(_FORK_AGAIN_S, self._fork_next)
        finally:
            ours.close()
        self._send_go()

    def _send_go(self) -> None:
        """Send `go` to the next process once all processes of the previous run are gone."""
        child = self._next
        if child is None or child.may_begin or self._run is not None:
            return
        child.may_begin = True
        # The child removes the folders of former runs, because this process must not wait for a file system.
        child.control.send("go", file_states=self._file_states, folders=self._left_folders)
        self._left_folders = []
        self._drivers.push(child)

    # The messages and the ends of children.

    def _read_control(self, child: Child) -> None:
        heard = child.control.receive()
        if heard is None:
            # The child has closed the connection, and cannot continue without it. SIGCHLD will report its end.
            self._selector.unregister(child.control)
            child.kill()
            return
        try:
            self._handle(child, heard)
        except (KeyError, TypeError, ValueError) as error:
            # Users' code has written into this connection, and perhaps also into the channel to the executor. Kill the
            # process a little later, so that the executor can first find the malformed data in its channel. Then the
            # run's error names the cause.
            logger.warning("a run's process sent a message that cannot be understood: %r", error)
            heard.close()
            self.after(_DAMAGED_S, child.kill)

    def _handle(self, child: Child, heard: Message) -> None:
        match heard.kind:
            case "accepted":
                self._on_accepted(child, heard)
            case "file_seen":
                self._file_states[str(heard.fields["path"])] = heard.fields
            case "owns":
                child.folders.append(str(heard.fields["path"]))
            case "imported":
                self._preloaded.remember(heard.fields["names"])
            case "finished":
                self.after(_FINISHING_S, child.kill)
            case _:
                self._drivers.hear(child, heard)

    def _on_accepted(self, child: Child, heard: Message) -> None:
        child.role = Role.RUN
        if heard.descriptors:
            child.take_log(heard.descriptors[0], self._setup["log_max_bytes"])
            self.after(_LOOK_AT_LOG_S, lambda: self._look_at_log(child))
        self._run = child
        self._next = None
        self.after(_FORK_AFTER_S, self._fork_next)

    def _look_at_log(self, child: Child) -> None:
        if child is self._run:
            child.limit_log()
            self.after(_LOOK_AT_LOG_S, lambda: self._look_at_log(child))

    def _reap(self) -> None:
        """Reap all processes that have ended, including adopted ones, and remember their exit codes."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            child = self._children.get(pid)
            if child is not None:
                # Kill the process's group before the process is reaped. Afterwards, the number may belong to another
                # group.
                child.kill()
                child.is_reaped = True
            _, status = os.waitpid(pid, 0)
            self._dead.append((pid, os.waitstatus_to_exitcode(status)))

    def _on_end(self, pid: int, code: int) -> None:
        child = self._children.get(pid)
        if child is None:
            self._drivers.on_end(pid, code)
            return
        self._hear_the_rest(child)
        del self._children[pid]
        if child.role is Role.OPENER:
            self._drivers.on_opener_end(child, code)
            child.close()
            return
        if child is self._run:
            self._end_leftovers()
            child.limit_log()
            self._run = None
            if self._preloaded.load_remembered():
                self.replace_next()
        self._left_folders += child.folders
        # Report the end last: the executor may send the next order as soon as it has this report.
        child.close()
        self.tell("ended", process=child.number, code=code)
        if child is self._next:
            self._next = None
            if not (child.is_leaving or child.is_attached):
                # Wait, because a process that dies at once would otherwise be replaced again and again without a pause.
                self.after(_FORK_AGAIN_S, self._fork_next)
                return
        self._fork_next()
        self._send_go()

    def _hear_the_rest(self, child: Child) -> None:
        """Read the last messages of a child that has ended."""
        with suppress(KeyError):
            while child.control in self._registered() and _is_readable(child.control):
                self._read_control(child)
            self._selector.unregister(child.control)

    def _registered(self) -> set[Any]:
        return {key.fileobj for key in self._selector.get_map().values()}

    def _end_leftovers(self) -> None:
        left = end_children(self._children_to_spare, reap=self._reap, within_s=_LEFT_BEHIND_S)
        if left:
            logger.warning("processes that a run left behind do not end: %s", left)

    def _children_to_spare(self) -> set[int]:
        ended = {pid for pid, _ in self._dead}
        return self._children.keys() - ended | self._drivers.pids


def _is_readable(control: Control) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        return bool(selector.select(0))


def _wake_up(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has already written to the wake-up descriptor, which the loop reads."""
