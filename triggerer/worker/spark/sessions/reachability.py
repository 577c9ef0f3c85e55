"""Checks whether the address of a master or of a Spark Connect server accepts connections.

Check the address before a session is opened. Otherwise Spark would wait a minute for an absent master, and the Connect
client ten minutes for an absent server.
"""

from __future__ import annotations

import re
import socket
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from triggerer.errors import ConfigurationError, SubmitFailed

CONNECT_PORT: Final = 15002
ANSWER_TIMEOUT_S: Final = 5.0


class Endpoint(NamedTuple):
    """The host and port of a TCP connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def master_endpoints(master: str) -> list[Endpoint]:
    """Return the addresses of a master; empty for `local`, `yarn` and other masters without an address.

    Raises:
        ConfigurationError: The address is malformed.
    """
    if master.startswith("spark://"):
        return [_endpoint(f"//{part}", 7077) for part in master[len("spark://") :].split(",")]
    if master.startswith("k8s://"):
        url = master[len("k8s://") :]
        url = url if "://" in url else f"https://{url}"
        return [_endpoint(url, 80 if url.startswith("http://") else 443)]
    return []


def connect_endpoint(remote: str) -> Endpoint:
    """Return the address of the Spark Connect server in a `sc://` URL.

    Raises:
        ConfigurationError: The URL is malformed.
    """
    return _endpoint(remote, CONNECT_PORT)


def _endpoint(url: str, default_port: int) -> Endpoint:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"[spark] {without_parameters(url)}: {error}") from error
    if not host:
        raise ConfigurationError(f"[spark] {without_parameters(url)!r} names no host")
    return Endpoint(host, port or default_port)


def without_parameters(remote: str) -> str:
    """Return the URL for display. The part after the first `;` may contain a token."""
    return re.sub(r";.*", ";...", remote)


def with_session(remote: str, session_id: str) -> str:
    """Return the URL of the server, for the session with this id."""
    address, _, parameters = remote.removeprefix("sc://").partition("/")
    kept = [one for one in parameters.split(";") if one and not one.startswith("session_id=")]
    return f"sc://{address}/;{';'.join([*kept, f'session_id={session_id}'])}"


def is_reachable(endpoint: Endpoint) -> bool:
    """Return whether the address accepts a connection now."""
    return not _refusal(endpoint)


def require_reachable(what: str, endpoints: list[Endpoint]) -> None:
    """Make sure that one of `endpoints` accepts a connection. Without endpoints, do nothing.

    Raises:
        SubmitFailed: No address accepts a connection. A later call may succeed.
    """
    refusals = []
    for endpoint in endpoints:
        refusal = _refusal(endpoint)
        if not refusal:
            return
        refusals.append(f"{endpoint}: {refusal}")
    if refusals:
        raise SubmitFailed(
            f"{what} does not answer: {'; '.join(refusals)}",
            hint="start it, or correct its address in [spark]",
        )


def _refusal(endpoint: Endpoint) -> str:
    try:
        socket.create_connection(endpoint, timeout=ANSWER_TIMEOUT_S).close()
    except OSError as error:
        return str(error) or type(error).__name__
    return ""
