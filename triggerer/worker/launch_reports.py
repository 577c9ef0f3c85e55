"""The reports of an attempt about its launches: the sessions and applications that it starts outside its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunOrder
from triggerer.domain.launches import CONNECT, Launch, session_id_of


class LaunchReports:
    """Reports launches, from any thread. The first report of a launch returns once the launch is stored.

    Report a launch before it begins. If this attempt then dies, the next attempt finds the launch in the store.

    Args:
        send: Sends a report without waiting.
        ask: Sends the query `launch`, and returns once the report is stored. It raises `RunFailed` if another attempt
            has the run.
        known: The tags of launches that are stored already.
    """

    def __init__(
        self, send: Callable[[Launch], None], ask: Callable[..., Any], known: Iterable[str]
    ) -> None:
        self._send = send
        self._ask = ask
        self._known = set(known)
        self.reported: set[str] = set()
        """The tags of the launches that this attempt has reported: its own, and applications of earlier attempts that
        its tasks wait for."""

    def __call__(self, launch: Launch) -> None:
        """Report a launch.

        Raises:
            RunFailed: This is the first report of the launch, and another attempt has the run.
        """
        self.reported.add(launch.tag)
        if launch.tag in self._known:
            self._send(launch)
        else:
            self._ask("launch", launch=asdict(launch))
            self._known.add(launch.tag)


class SessionLaunches:
    """The sessions that one attempt opens on a Spark Connect server. Without a server, the methods do nothing."""

    def __init__(self, order: RunOrder, report: Callable[[Launch], None]) -> None:
        self._order = order
        self._report = report
        self._tag: str | None = None
        self._sessions = 0

    @property
    def are_remote(self) -> bool:
        """True if the attempt's sessions live on a server."""
        return self._order.connect is not None

    @property
    def tag(self) -> str | None:
        """The tag of the present session. None: there is no session on a server."""
        return self._tag

    def begin(self) -> str | None:
        """Report the next session, and return its tag. None: the session is on no server, and ends with this process.

        Each session's tag must be stored before the session opens:

        - The executor stored the tag of the first session when it claimed the run. Report this session as running.
        - A further session replaces a dead session. Report it as launching, so that its tag is stored now.
        """
        if not self.are_remote:
            return None
        self._sessions += 1
        tag = self._order.tag
        self._tag = tag if self._sessions == 1 else f"{tag}-s{self._sessions}"
        self._tell(AttemptState.LAUNCHING if self._sessions > 1 else AttemptState.RUNNING)
        return self._tag

    def released(self) -> None:
        """Report that the server has released the present session, and with it has ended the session's operations."""
        if self._tag is not None:
            self._tell(AttemptState.SUCCESS)
            self._tag = None

    def _tell(self, state: AttemptState) -> None:
        assert self._tag is not None
        self._report(
            Launch(
                self._tag,
                CONNECT,
                state,
                datetime.now(UTC),
                place=self._order.connect,
                external_id=session_id_of(self._tag),
            )
        )


def launch_reports(
    order: RunOrder, send: Callable[[Launch], None], ask: Callable[..., Any]
) -> LaunchReports:
    """Return an attempt's reporter. The store already has the first session, and the launches of former attempts."""
    known = {one.tag for one in order.former}
    return LaunchReports(send, ask, known | ({order.tag} if order.connect else set()))
