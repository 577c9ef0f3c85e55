"""HTTP for the launchers whose cluster has an HTTP API: JSON requests, and a `watch` that polls."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from triggerer.worker.launchers.protocol import Absent, Ended, Handle, Sighting, Unknown

_ANSWER_S: Final = 10.0
_ASK_EVERY_S: Final = 1.0
_UNAUTHORIZED: Final = 401
_LONGEST_MESSAGE: Final = 300


class NoAnswer(Exception):
    """The cluster cannot be reached, or refuses the request. The text has the reason.

    Attributes:
        status: The status of the HTTP answer; None: there was no answer.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpApi:
    """A cluster's API that speaks JSON over HTTP."""

    address: str
    headers: Callable[[], Mapping[str, str]] = dict
    """Returns the headers, or raises `NoAnswer` if a credential cannot be read. Called for each request, because a
    credential may be renewed while a launch is watched."""
    tls: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request, and return the parsed JSON of the answer. For an empty answer, return an empty dictionary.

        Raises:
            NoAnswer: There is no usable answer.
        """
        text = self.read(method, path, body)
        try:
            return json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise NoAnswer(f"{self.address} answered something that is no JSON") from error

    def read(self, method: str, path: str, body: object = None) -> str:
        """Send a request, and return the text of the answer.

        Raises:
            NoAnswer: There is no usable answer.
        """
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}{path}", data, method=method)
        for name, value in {"Accept": "application/json", **self.headers()}.items():
            request.add_header(name, value)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urlopen(request, timeout=_ANSWER_S, context=self.tls) as answer:
                return str(answer.read().decode(errors="replace"))
        except HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise NoAnswer(self._refusal(error, said), error.code) from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise NoAnswer(f"{self.address} does not answer: {reason}") from error

    def _refusal(self, error: HTTPError, said: str) -> str:
        if error.code == _UNAUTHORIZED:
            return f"{self.address} refused the credentials ({error.code} {error.reason})"
        return f"{self.address} answered {error.code} {error.reason}: {message_in(said)}"


def message_in(text: str) -> str:
    """Return the first line of an error's message. Kubernetes, YARN and Spark put the message into JSON."""
    try:
        document = json.loads(text)
        # YARN wraps the error in `RemoteException`.
        message = document.get("RemoteException", document)["message"]
    except (ValueError, AttributeError, KeyError, TypeError):
        message = text
    return next(iter(str(message).strip().splitlines()), "no reason")[:_LONGEST_MESSAGE]


def ask_active(
    apis: Sequence[HttpApi],
    ask: Callable[[HttpApi], Any],
    is_active: Callable[[Any], bool] = lambda answer: True,
) -> Any:
    """Ask a cluster's servers one after the other, and return the answer of the active server.

    In a highly available cluster, one server is active and the others stand by.

    Raises:
        NoAnswer: No server is active.
    """
    refusals = []
    for api in apis:
        try:
            answer = ask(api)
        except NoAnswer as error:
            refusals.append(error)
            continue
        if is_active(answer):
            return answer
        refusals.append(NoAnswer(f"{api.address} is not active"))
    raise NoAnswer("; ".join(map(str, refusals)), refusals[0].status)


def watch_by_asking(
    find: Callable[[str, str | None], Sighting], handle: Handle
) -> Iterator[Sighting]:
    """Call `find` repeatedly until the launch has ended. Yield each result that differs from the previous one."""
    last: Sighting | None = None
    while not isinstance(last, Ended | Absent):
        sighting = find(handle.tag, handle.external_id)
        if sighting != last:
            last = sighting
            yield sighting
        if not isinstance(sighting, Ended | Absent):
            time.sleep(_ASK_EVERY_S)


def answered(ask: Callable[[], Sighting]) -> Sighting:
    """Return the result of `ask`, or `Unknown` if the cluster gives no answer with the expected fields."""
    try:
        return ask()
    except NoAnswer as error:
        return Unknown(str(error))
    except (KeyError, TypeError, AttributeError) as error:
        return Unknown(f"the answer cannot be understood: {error!r}")
