"""TLS with the certificate in `[api] tls_certificate` and the key in `tls_key`."""

from __future__ import annotations

import os
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
import structlog

from triggerer.config.sections import ApiSettings
from triggerer.errors import ConfigurationError

_log = structlog.get_logger(__name__)

LOOK_EVERY: Final = timedelta(minutes=1)
"""The longest time until a renewed certificate is in use."""
_READABLE: Final = "name a PEM file that the service's user can read"


class Certificate:
    """The certificate with its key. New connections use a renewed certificate without a restart.

    Raises:
        ConfigurationError: A file cannot be read, or the key is not the certificate's. The message names the file.
    """

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._certificate = certificate
        self._key = certificate if key is None else key
        self.context: Final = _new_context()
        self._loaded: tuple[int, ...] = self._written_at()
        self._load()

    async def follow(self) -> None:
        """Load the certificate again whenever its files have changed, until cancelled."""
        while True:
            await anyio.sleep(LOOK_EVERY.total_seconds())
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Load the files if they have changed. If that fails, the old certificate stays in use. The log says why."""
        try:
            written = self._written_at()
            if written == self._loaded:
                return
            self._loaded = written
            self._load()
        except ConfigurationError as error:
            _log.warning("the renewed certificate cannot be used", error=str(error))
        else:
            _log.info("the renewed certificate is in use", certificate=str(self._certificate))

    def _written_at(self) -> tuple[int, ...]:
        """Return when the files were written. A link is followed, because a renewal may point it to another file."""
        times = []
        for name, path in (("tls_certificate", self._certificate), ("tls_key", self._key)):
            try:
                with path.open("rb") as file:
                    times.append(os.fstat(file.fileno()).st_mtime_ns)
            except OSError as error:
                raise ConfigurationError(
                    f"[api] {name}: {path} cannot be read: {error.strerror}", hint=_READABLE
                ) from error
        return tuple(times)

    def _load(self) -> None:
        # Load into a new context first. A load that fails halfway would leave `self.context` without a key.
        self._load_into(_new_context())
        self._load_into(self.context)

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, _refuse_to_ask)
        except _PasswordNeeded as error:
            raise ConfigurationError(
                f"[api] tls_key: {self._key} is protected by a password",
                hint=f"openssl pkey -in {self._key} -out KEY writes the key without one",
            ) from error
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigurationError(
                    f"[api] tls_key: {self._key} is not the key of {self._certificate}",
                    hint="name the key with which the certificate was requested",
                ) from error
            raise ConfigurationError(
                f"[api] tls_certificate: {self._certificate} has no certificate, or {self._key} has no key",
                hint="both are PEM files: -----BEGIN CERTIFICATE-----, -----BEGIN PRIVATE KEY-----",
            ) from error
        except OSError as error:
            # A file has vanished since `_written_at`. It may come back with the same time of change.
            self._loaded = ()
            raise ConfigurationError(
                f"[api] tls_certificate: {self._certificate} or {self._key} cannot be read: {error.strerror}",
                hint=_READABLE,
            ) from error


def _new_context() -> ssl.SSLContext:
    """Return a context with the interpreter's defaults: TLS 1.2 at least, and the ciphers that OpenSSL recommends."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


class _PasswordNeeded(Exception):
    """The key has a password."""


def _refuse_to_ask() -> str:
    # Without this callback, OpenSSL would ask for the password on the terminal, and wait.
    raise _PasswordNeeded


def certificate_of(settings: ApiSettings) -> Certificate | None:
    """Return the certificate of the API, or None if there is none.

    Raises:
        ConfigurationError: The certificate cannot be used.
    """
    if settings.tls_certificate is None:
        if settings.tls_key is not None:
            raise ConfigurationError(
                "[api] has a tls_key and no tls_certificate", hint="set both, or neither"
            )
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)
