"""A run's end of the connection to the fork server."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from triggerer.errors import SubmitFailed
from triggerer.processes.lifelines import kill_own_group
from triggerer.worker.fork_server.control import Control, Message

if TYPE_CHECKING:
    from triggerer.worker.spark.sessions.shared import SharedDriver


class ForkServerLink:
    """Asks the fork server, and hears what it says in between. One thread at a time waits for an answer.

    Attributes:
        has_gone: True once nothing of a former run is left.
        sightings: See `triggerer.worker.attempt.Sightings`.
        left_folders: The folders that a former process has left.
        driver: The driver to attach to, as soon as the fork server has told.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._numbers = itertools.count()
        self._asking = threading.Lock()
        self.has_gone = False
        self.sightings: dict[str, dict[str, Any]] = {}
        self.left_folders: list[str] = []
        self.driver: SharedDriver | None = None

    def fileno(self) -> int:
        return self._control.fileno()

    def receive(self) -> str:
        """Wait for a message, note it, and return its kind.

        Does not return if the fork server is gone, because then this process must not go on.
        """
        return self._receive().kind

    def _receive(self) -> Message:
        heard = self._control.receive()
        if heard is None:
            kill_own_group()
            raise EOFError("the fork server is gone")
        if heard.kind == "go":
            self.has_gone = True
            self.sightings = heard.fields["sightings"]
            self.left_folders = heard.fields["folders"]
        elif heard.kind == "driver":
            self.driver = _driver(heard.fields["driver"])
        return heard

    def taken(self, log: int) -> None:
        """Tell that this process has an order, and where its log is."""
        self._control.send("taken", descriptors=[log])

    def attached(self) -> None:
        """Tell that this process is ready for a run on Spark."""
        self._control.send("attached")

    def unusable(self, reason: str, pid: int) -> None:
        """Tell that a driver must not be used again."""
        self._control.send("unusable", reason=reason, pid=pid)

    def sighted(self, path: str, **state: Any) -> None:
        """Tell in which state a DAG file was when it did not load, for the next runs."""
        self._control.send("sighted", path=path, **state)

    def owns(self, folder: str) -> None:
        """Tell that a folder must be removed after this process."""
        self._control.send("owns", path=folder)

    def finished(self, imported: list[str]) -> None:
        """Tell that the order is executed, and which modules that took."""
        self._control.send("imported", names=imported)
        self._control.send("finished")

    def open_driver(self, *, is_fresh: bool) -> SharedDriver:
        """Return a driver, which the fork server may have to open first.

        Args:
            is_fresh: True: not the present one, because that does not work.
        Raises:
            SubmitFailed: None could be opened. The message has the reason.
        """
        answer = self._ask("open", fresh=is_fresh)
        if answer["driver"] is None:
            raise SubmitFailed(answer["error"])
        return _driver(answer["driver"])

    def how_driver_ended(self, pid: int, *, patience_s: float) -> str | None:
        """Return how a driver ended, for a message; None: it has not ended within the patience."""
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
                # An older reply belongs to a question that was interrupted.
                if heard.kind == "reply" and heard.fields["number"] == number:
                    return heard.fields


def _driver(document: dict[str, Any]) -> SharedDriver:
    from triggerer.worker.spark.sessions.shared import SharedDriver

    return SharedDriver(**document)
