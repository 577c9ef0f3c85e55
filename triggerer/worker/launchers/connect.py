"""Sessions on a Spark Connect server. If a client dies, the server continues the client's work.

The work ends when the session is released. A session's id is computed from its tag, so that another process can open
and release the session of a dead client. The server refuses the id of a released session. So a client that was only
believed dead cannot start further work.

Source: tried with PySpark 4.1 and 4.3, see tests/worker/spark/test_connect_fence.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import CONNECT, session_id_of
from triggerer.worker.launchers.protocol import (
    Absent,
    Ended,
    Handle,
    Intent,
    Running,
    Sighting,
    Unknown,
)
from triggerer.worker.spark.sessions.reachability import (
    connect_endpoint,
    is_reachable,
    with_session,
    without_parameters,
)
from triggerer.worker.spark.sessions.settling import python_workers_live_for_s
from triggerer.worker.spark.settings import reason_of

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

_ANSWER_S: Final = 10.0
"""How long to wait for an answer of the server."""
_SESSION_CLOSED: Final = "INVALID_HANDLE.SESSION_CLOSED"
_LOOK_EVERY_S: Final = 1.0
_RELEASES: Final = 5
_BETWEEN_RELEASES_S: Final = 0.2


class ConnectLauncher:
    """Opens Spark Connect sessions, and closes the sessions of former attempts. See `Launcher`.

    A session's id is computed from the attempt's tag, so that a later attempt can find the session.
    """

    name = CONNECT
    can_reattach = False

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._remote = settings.remote or ""
        self._shown = without_parameters(self._remote)
        self.place: str | None = f"sc://{connect_endpoint(self._remote)}"

    def launch(self, intent: Intent) -> Handle:
        from triggerer.worker.spark.sessions.connect import open_connect

        open_connect(self._settings, tag=intent.tag)
        return self._handle(intent.tag)

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        """Return `Absent` if the session was released, and `Running` if it was not.

        A session that does not exist yet is `Running`, too, because this query opens it.
        """

        def answer(client: Any) -> Sighting:
            client.get_configs("spark.app.name")
            return Running(self._handle(tag))

        return self._ask(tag, answer)

    def stop(self, handle: Handle) -> Sighting:
        """Interrupt the session's operations, release it, and wait until Spark has killed its Python workers."""
        stopped: list[_Stopped] = []

        def answer(client: Any) -> Sighting:
            stopped.append(_stop_session(client, handle.tag))
            return Absent()

        sighting = self._ask(handle.tag, answer)
        if not stopped:
            return sighting
        (end,) = stopped
        known = self._handle(handle.tag)
        # The server does not report the end of its Python workers, so wait for the longest time that they can survive.
        # Wait even if this call interrupted nothing, because the dead client may just have interrupted an operation.
        time.sleep(end.python_workers_live_for_s)
        if not end.operations:
            return Ended(known, AttemptState.LOST, "its session had nothing under way")
        operations = "operation" if end.operations == 1 else "operations"
        said = f"{end.operations} {operations} stopped on {self.place}"
        return Ended(known, AttemptState.KILLED, said)

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        last = None
        while not isinstance(last, Ended | Absent):
            sighting = self.find(handle.tag)
            if sighting != last:
                last = sighting
                yield sighting
            time.sleep(_LOOK_EVERY_S)

    def _handle(self, tag: str) -> Handle:
        return Handle(tag, session_id_of(tag))

    def _ask(self, tag: str, answer: Callable[[Any], Sighting]) -> Sighting:
        """Open the session of this tag, and let `answer` query the server, within a limited time."""
        if not is_reachable(connect_endpoint(self._remote)):
            return Unknown(f"the Spark Connect server {self._shown} does not answer")
        answers: list[Sighting] = []

        def ask() -> None:
            try:
                answers.append(self._ask_now(tag, answer))
            except Exception as error:  # noqa: BLE001 - whatever the client raises, the session's state is unknown
                reason = reason_of(error)
                answers.append(Unknown(f"the Spark Connect server {self._shown} said: {reason}"))

        # A server that hangs accepts connections and never answers. The client library has no deadline, so ask in a
        # thread.
        asking = threading.Thread(target=ask, name="connect-fence", daemon=True)
        asking.start()
        asking.join(_ANSWER_S)
        if not answers:
            return Unknown(
                f"the Spark Connect server {self._shown} gave no answer within {_ANSWER_S:g} s"
            )
        return answers[0]

    def _ask_now(self, tag: str, answer: Callable[[Any], Sighting]) -> Sighting:
        client = _client(with_session(self._remote, session_id_of(tag)))
        try:
            return answer(client)
        except Exception as error:
            if _SESSION_CLOSED in str(error):
                return Absent()
            raise
        finally:
            client.close()


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A session that was released."""

    operations: int
    """The number of operations that were interrupted."""
    python_workers_live_for_s: float
    """How long a Python worker of an interrupted task may still execute the user's function."""


def _stop_session(client: Any, tag: str) -> _Stopped:
    lives_s = python_workers_live_for_s(client)
    interrupted = set(client.interrupt_tag(tag)) | set(client.interrupt_all())
    for _ in range(_RELEASES):
        try:
            client.release_session()
            break
        except Exception as error:  # noqa: BLE001 - the client has no class for this error
            if _SESSION_CLOSED in str(error):
                break
            # The server refuses the release for a moment if an operation was interrupted before it began.
            time.sleep(_BETWEEN_RELEASES_S)
    else:
        client.release_session()
    return _Stopped(len(interrupted), lives_s)


def _client(remote: str) -> Any:
    """Return a client without a session object, because PySpark would make such an object this process's session."""
    from pyspark.sql.connect.client import SparkConnectClient

    client: Any = SparkConnectClient(remote)
    client.set_retry_policies([])
    return client
