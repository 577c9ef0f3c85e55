"""Binds the socket of the API, before other parts of the API start."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from triggerer.api.tls import certificate_of
from triggerer.config.sections import ApiSettings
from triggerer.errors import ConfigurationError

ADDRESS_FILE: Final = "api-address"
_BACKLOG: Final = 512
_PATIENCE_S: Final = 2.0


@contextmanager
def open_listener(settings: ApiSettings, *, home: Path) -> Iterator[socket.socket]:
    """Yield the listening socket. During the block, the file `api-address` in `home` contains the API's URL.

    Raises:
        ConfigurationError: The address is taken or unknown. Or other machines could reach it without TLS, and
            `behind_proxy` is not set. Or the certificate cannot be used, or `home` cannot be written to.
    """
    _refuse_open(settings)
    # Check the certificate now, because the process that uses it may start much later.
    certificate_of(settings)
    with _bind(settings) as listener:
        file = home / ADDRESS_FILE
        _write_address(file, url_of(listener, settings))
        try:
            yield listener
        finally:
            with suppress(OSError):
                file.unlink()


def _write_address(file: Path, url: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(url + "\n", "utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the API's address cannot be written to {file}: {error.strerror}",
            hint="make sure that [core] home has free space, and that the service's user can write there",
        ) from error


def url_of(listener: socket.socket, settings: ApiSettings) -> str:
    """Return the URL by which this machine reaches the API."""
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://{name}:{port}"


def _bind(settings: ApiSettings) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        listener = _create(address[:2], family)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise ConfigurationError(
            f"the API cannot listen on {where}: {error.strerror or error}",
            hint="stop the process that has the port, or set [api] port (0: a free one) or [api] host",
        ) from error
    listener.setblocking(False)
    return listener


def _create(address: tuple[Any, ...], family: int) -> socket.socket:
    """Bind the address. Try for two seconds: the API's process of a killed service may still use the address."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _refuse_open(settings: ApiSettings) -> None:
    if settings.tls_certificate is not None or settings.behind_proxy or is_loopback(settings.host):
        return
    raise ConfigurationError(
        f"[api] host = {settings.host!r} would send tokens over the network unencrypted",
        hint="set [api] tls_certificate and tls_key, or behind_proxy = true if a proxy in front ends TLS",
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
