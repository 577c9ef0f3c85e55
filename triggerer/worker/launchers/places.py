"""Shared by launchers of clusters with an HTTP API: JSON requests, and a watch that polls."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from triggerer.worker.launchers.protocol import Absent, Ended, Handle, Sighting, Unknown

_ANSWER_S: Final = 10.0
_ASK_EVERY_S: Final = 1.0
_GONE: Final = 404


class NoAnswer(Exception):
    """The cluster cannot be reached, or refuses the request. The text has the reason."""


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """A cluster's API that speaks JSON over HTTP."""

    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: object = None) -> Any | None:
        """Return the answer. None: the cluster has no such object (404).

        Raises:
            NoAnswer: There is no usable answer.
        """
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}{path}", data, method=method)
        for name, value in {"Accept": "application/json", **self.headers}.items():
            request.add_header(name, value)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urlopen(request, timeout=_ANSWER_S, context=self.tls) as answer:
                text = answer.read()
        except HTTPError as error:
            with error:
                if error.code == _GONE:
                    return None
                said = error.read()[:300].decode(errors="replace")
            raise NoAnswer(
                f"{self.address} answered {error.code} {error.reason}: {said}"
            ) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise NoAnswer(f"{self.address} does not answer: {reason}") from error
        try:
            return json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise NoAnswer(f"{self.address} answered something that is no JSON") from error


def watch_by_asking(
    find: Callable[[str, str | None], Sighting], handle: Handle
) -> Iterator[Sighting]:
    """Call `find` repeatedly, and yield each result that differs from the last one, up to the end of the launch."""
    last: Sighting | None = None
    while not isinstance(last, Ended | Absent):
        sighting = find(handle.tag, handle.external_id)
        if sighting != last:
            last = sighting
            yield sighting
        if not isinstance(sighting, Ended | Absent):
            time.sleep(_ASK_EVERY_S)


def answered(look: Callable[[], Sighting]) -> Sighting:
    """Call `look`. Return its result, or `Unknown` if the cluster does not answer."""
    try:
        return look()
    except NoAnswer as error:
        return Unknown(str(error))
