"""The connection to the fork server, as a run's process uses it."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from triggerer.domain.text.known_fields import known_fields
from triggerer.errors import SubmitFailed
from triggerer.processes.lifelines import kill_own_group
from triggerer.worker.fork_server.control import Control, Message

if TYPE_CHECKING:
    from triggerer.worker.spark.sessions.shared import SharedDriver


class ForkServerLink:
    """Sends questions to the fork server, one at a time. Stores the messages that the fork server sends unasked.

    Attributes:
        may_begin: True once all processes of the previous run are gone, so that this process may accept an order.
        file_states: The states of DAG files that earlier processes saw, see `triggerer.worker.attempt.FileStates`.
        left_folders: The temporary folders of earlier processes. This process must remove them.
        driver: The driver to attach to. None until the fork server has sent the driver.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._numbers = itertools.count()
        self._asking = threading.Lock()
        self.may_begin = False
        self.file_states: dict[str, dict[str, Any]] = {}
        self.left_folders: list[str] = []
        self.driver: SharedDriver | None = None

    def fileno(self) -> int:
        return self._control.fileno()

    def receive(self) -> str:
        """Wait for a message, store its fields, and return its kind. If the fork server is gone, kill this process."""
        return self._receive().kind

    def _receive(self) -> Message:
        heard = self._control.receive()
        if heard is None:
            kill_own_group()
            raise EOFError("the fork server is gone")
        if heard.kind == "go":
            self.may_begin = True
            self.file_states = heard.fields["file_states"]
            self.left_folders = heard.fields["folders"]
        elif heard.kind == "driver":
            self.driver = _driver(heard.fields["driver"])
        return heard

    def accepted(self, log: int) -> None:
        """Tell the fork server that this process has an order. Pass the descriptor of the run's log."""
        self._control.send("accepted", descriptors=[log])

    def attached(self) -> None:
        """Tell the fork server that this process is attached to the driver."""
        self._control.send("attached")

    def unusable(self, reason: str, pid: int) -> None:
        """Tell the fork server that a driver must not be used again."""
        self._control.send("unusable", reason=reason, pid=pid)

    def file_seen(self, path: str, **state: Any) -> None:
        """Send the state of a DAG file that does not load or lacks the run's DAG. Later processes receive the state."""
        self._control.send("file_seen", path=path, **state)

    def owns(self, folder: str) -> None:
        """Tell the fork server that a folder must be removed after this process has ended."""
        self._control.send("owns", path=folder)

    def finished(self, imported: list[str]) -> None:
        """Tell the fork server that the order is executed, and which modules were imported for it."""
        self._control.send("imported", names=imported)
        self._control.send("finished")

    def open_driver(self, *, is_fresh: bool) -> SharedDriver:
        """Return the driver. If there is none, the fork server opens a driver.

        Args:
            is_fresh: True: open another driver, because the present driver does not work.
        Raises:
            SubmitFailed: No driver could be opened. The message has the reason.
        """
        answer = self._ask("open", fresh=is_fresh)
        if answer["driver"] is None:
            raise SubmitFailed(answer["error"])
        return _driver(answer["driver"])

    def how_driver_ended(self, pid: int, *, patience_s: float) -> str | None:
        """Return a clause that says how a driver ended. None: it is still alive after `patience_s`, or unknown."""
        how: str | None = self._ask("how_ended", about={"pid": pid, "patience_s": patience_s})[
            "how"
        ]
        return how

    def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        with self._asking:
            number = next(self._numbers)
            self._control.send(kind, number=number, **fields)
            while True:
                heard = self._receive()
                # A reply with another number belongs to an earlier question, which was interrupted.
                if heard.kind == "reply" and heard.fields["number"] == number:
                    return heard.fields


def _driver(document: dict[str, Any]) -> SharedDriver:
    from triggerer.worker.spark.sessions.shared import SharedDriver

    return SharedDriver(**known_fields(SharedDriver, document))
