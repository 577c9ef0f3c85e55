"""Whether somebody answers at the address of a master or of a Spark Connect server.

Asked first, since Spark itself takes a minute to give up on a master, and the Connect client ten.
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
    """A host and a port that a TCP connection goes to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def master_endpoints(master: str) -> list[Endpoint]:
    """Where the master listens, any of them; empty for `local`, `yarn` and what else has no address.

    Raises:
        ConfigurationError: The address cannot be read.
    """
    if master.startswith("spark://"):
        return [_endpoint(f"//{part}", 7077) for part in master[len("spark://") :].split(",")]
    if master.startswith("k8s://"):
        url = master[len("k8s://") :]
        url = url if "://" in url else f"https://{url}"
        return [_endpoint(url, 80 if url.startswith("http://") else 443)]
    return []


def connect_endpoint(remote: str) -> Endpoint:
    """Where the Spark Connect server of a `sc://` URL listens.

    Raises:
        ConfigurationError: The URL cannot be read.
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
    """The URL as it may be shown: what follows the first `;` can hold a token."""
    return re.sub(r";.*", ";...", remote)


def is_reachable(endpoint: Endpoint) -> bool:
    """Whether a connection can be made there now."""
    return not _refusal(endpoint)


def require_reachable(what: str, endpoints: list[Endpoint]) -> None:
    """Return if any of `endpoints` takes a connection, or if there are none to try.

    Raises:
        SubmitFailed: None does. The same call may succeed later.
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
