"""Certificates for a server on `localhost`, made with the openssl command."""

import shutil
import subprocess
from pathlib import Path

from tests.services.process import ServiceUnavailable


class Authority:
    """A certificate authority in a folder of its own.

    Attributes:
        file: The authority's certificate, which clients trust.
    Raises:
        ServiceUnavailable: There is no openssl.
    """

    def __init__(self, folder: Path, *, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            raise ServiceUnavailable("no openssl on PATH")
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        _openssl(
            "req", "-x509", *_new_key(self._key), "-out", self.file, "-subj", f"/CN={name}",
            "-days", 30,
        )  # fmt: skip

    def issue(self, certificate: Path, key: Path, *, days: int) -> None:
        """Write a certificate for localhost and its key; with -1 day it has expired."""
        request = certificate.with_suffix(".csr")
        _openssl(
            "req", "-new", *_new_key(key), "-out", request, "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost",
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key,
            "-out", certificate, "-days", days, "-copy_extensions", "copy",
        )  # fmt: skip


def _new_key(path: Path) -> list[object]:
    return ["-newkey", "rsa:2048", "-nodes", "-keyout", path]


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
