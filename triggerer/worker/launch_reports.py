"""What one attempt reports about the things that it launches outside its process."""

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

    So the store knows each launch before it begins, and a next attempt finds it even if this attempt dies now.

    Args:
        send: Sends a report without waiting.
        ask: Sends the query `launch`, and returns once the report is stored. It raises `RunFailed` if another attempt
            has the run.
        known: The tags that the store knows already.
    """

    def __init__(
        self, send: Callable[[Launch], None], ask: Callable[..., Any], known: Iterable[str]
    ) -> None:
        self._send = send
        self._ask = ask
        self._known = set(known)
        self.reported: set[str] = set()
        """The tags of the launches that this attempt has reported, which are its own, or which it follows."""

    def __call__(self, launch: Launch) -> None:
        """Report a launch.

        Raises:
            RunFailed: It is the first report of this launch, and another attempt has the run.
        """
        self.reported.add(launch.tag)
        if launch.tag in self._known:
            self._send(launch)
        else:
            self._ask("launch", launch=asdict(launch))
            self._known.add(launch.tag)


class SessionLaunches:
    """The sessions that one attempt opens on a Spark Connect server. Without such a server it does nothing."""

    def __init__(self, order: RunOrder, report: Callable[[Launch], None]) -> None:
        self._order = order
        self._report = report
        self._tag: str | None = None
        self._sessions = 0

    @property
    def are_remote(self) -> bool:
        """True if the attempt's sessions live on a server."""
        return self._order.connect is not None

    def begin(self) -> str | None:
        """Return the tag for the session that is opened next; None: the session ends with this process.

        The claim has stored the intent of the first session. Another one follows if a session has died.
        """
        if not self.are_remote:
            return None
        self._sessions += 1
        tag = self._order.tag
        self._tag = tag if self._sessions == 1 else f"{tag}-s{self._sessions}"
        self._tell(AttemptState.LAUNCHING if self._sessions > 1 else AttemptState.RUNNING)
        return self._tag

    def released(self) -> None:
        """Report that the server has released the last session, so that it does nothing any longer."""
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
    """Return the reports of an attempt. The claim has stored its first session, and former attempts theirs."""
    known = {one.tag for one in order.former}
    return LaunchReports(send, ask, known | ({order.tag} if order.connect else set()))
