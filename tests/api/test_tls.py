"""TLS with a certificate from the settings: what clients see, files that are renewed, and files that are refused."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from structlog.testing import capture_logs

from tests.api.conftest import Api
from tests.api.test_connections import served
from tests.services.availability import skip_or_fail
from tests.services.certificates import Authority
from tests.services.process import ServiceUnavailable
from triggerer.api import tls
from triggerer.api.listening import open_listener
from triggerer.api.tls import Certificate
from triggerer.config.sections import ApiSettings
from triggerer.errors import ConfigurationError

V1 = "/api/v1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    try:
        return Authority(tmp_path_factory.mktemp("authority"))
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    authority.issue(certificate, key, days=30)
    return certificate, key


@asynccontextmanager
async def served_by_tls(api: Api, files: tuple[Path, Path]) -> AsyncIterator[str]:
    certificate, key = files
    async with served(api.with_settings(tls_certificate=certificate, tls_key=key)) as address:
        yield f"https://localhost:{address.rpartition(':')[2]}"


async def test_a_browser_gets_a_session_that_only_https_carries(
    api: Api, authority: Authority, files: tuple[Path, Path]
) -> None:
    async with (
        served_by_tls(api, files) as address,
        httpx.AsyncClient(
            base_url=address, verify=ssl.create_default_context(cafile=authority.file)
        ) as browser,
    ):
        ours = {"Sec-Fetch-Site": "same-origin"}
        signed_in = await browser.post(
            f"{V1}/session", json={"token": api.tokens["viewer"]}, headers=ours
        )
        whoami = await browser.get(f"{V1}/whoami")
        page = await browser.get("/")
    cookie = signed_in.headers["set-cookie"]
    assert cookie.startswith("__Host-triggerer=")
    assert {"Secure", "HttpOnly", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert whoami.json()["role"] == "viewer"
    assert page.status_code == 200
    # A `Strict-Transport-Security` header would apply to all ports of the host. So only the operator may send one.
    assert "strict-transport-security" not in page.headers


async def test_curl_checks_the_certificate_and_old_protocols_are_refused(
    api: Api, authority: Authority, files: tuple[Path, Path]
) -> None:
    if shutil.which("curl") is None:
        skip_or_fail("no curl on PATH")
    async with served_by_tls(api, files) as address:

        async def curl(*options: str) -> subprocess.CompletedProcess[bytes]:
            url = f"{address}{V1}/openapi.json"
            return await anyio.run_process(
                ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", *options, url], check=False
            )

        trusted = await curl("--cacert", str(authority.file))
        untrusted = await curl()
        old = await curl("--cacert", str(authority.file), "--tls-max", "1.1")
    assert (trusted.returncode, trusted.stdout) == (0, b"200")
    # curl's codes: 60, the certificate is not trusted; 35, the handshake failed.
    assert untrusted.returncode == 60
    assert old.returncode == 35


async def test_plain_http_is_closed_and_the_next_client_is_served(
    api: Api, authority: Authority, files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with served_by_tls(api, files) as address:
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(f"{address.replace('https', 'http')}{V1}/openapi.json")
        context = ssl.create_default_context(cafile=authority.file)
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.get(f"{address}{V1}/openapi.json")).status_code == 200
    assert "Traceback" not in caplog.text


def test_a_renewed_certificate_is_used_without_a_restart_and_a_broken_one_is_not(
    authority: Authority, files: tuple[Path, Path]
) -> None:
    certificate, key = files
    used = Certificate(certificate, key)
    first = _shown_by(used, authority)
    key.write_text("half of a key")
    os.utime(key, ns=(1, 1))
    used.reload_if_changed()
    assert _shown_by(used, authority) == first
    authority.issue(certificate, key, days=60)
    used.reload_if_changed()
    assert _shown_by(used, authority) != first


@pytest.mark.parametrize("vanishing", ["tls.crt", "tls.key"])
def test_a_file_that_vanishes_before_it_is_loaded_leaves_the_old_certificate_in_use(
    authority: Authority,
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vanishing: str,
) -> None:
    used = Certificate(*files)
    first = _shown_by(used, authority)
    authority.issue(*files, days=60)

    def vanish() -> ssl.SSLContext:
        (tmp_path / vanishing).rename(tmp_path / "away")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    with monkeypatch.context() as between, capture_logs() as logged:
        between.setattr(tls, "_new_context", vanish)
        used.reload_if_changed()
    (warning,) = logged
    assert "cannot be read: No such file or directory" in warning["error"]
    assert _shown_by(used, authority) == first
    # The renamed file has the time of change that was seen already.
    (tmp_path / "away").rename(tmp_path / vanishing)
    used.reload_if_changed()
    assert _shown_by(used, authority) != first


def _shown_by(certificate: Certificate, authority: Authority) -> bytes:
    """Do a TLS handshake in memory; return the certificate that the client sees."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=authority.file)
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return shown


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("no certificate", r"tls_certificate: .*tls\.crt cannot be read: No such file"),
        ("no key", r"tls_key: .*tls\.key cannot be read: No such file"),
        ("a folder", r"tls_key: .*tls\.key cannot be read: Is a directory"),
        ("another key", r"tls\.key is not the key of .*tls\.crt"),
        ("no PEM", r"tls\.crt has no certificate, or .*tls\.key has no key"),
        ("a password", r"tls\.key is protected by a password"),
        ("a key alone", "a tls_key and no tls_certificate"),
    ],
)
def test_files_that_cannot_be_used_are_refused_at_the_start_in_one_sentence(
    authority: Authority, files: tuple[Path, Path], tmp_path: Path, spoil: str, said: str
) -> None:
    certificate, key = files
    settings = ApiSettings(port=0, tls_certificate=certificate, tls_key=key)
    match spoil:
        case "no certificate":
            certificate.unlink()
        case "no key":
            key.unlink()
        case "a folder":
            key.unlink()
            key.mkdir()
        case "another key":
            authority.issue(tmp_path / "other.crt", key, days=30)
        case "no PEM":
            certificate.write_bytes(b"\0\1\2")
        case "a password":
            protect = ["-aes256", "-passout", "pass:x", "-out", str(tmp_path / "new.key")]
            subprocess.run(["openssl", "pkey", "-in", str(key), *protect], check=True)
            (tmp_path / "new.key").replace(key)
        case "a key alone":
            settings = ApiSettings(port=0, tls_key=key)
    with (
        pytest.raises(ConfigurationError, match=said) as refused,
        open_listener(settings, home=tmp_path),
    ):
        pass
    assert refused.value.hint
    assert "\n" not in refused.value.message


def test_certificate_and_key_may_be_in_one_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = files
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    settings = ApiSettings(port=0, tls_certificate=both)
    with open_listener(settings, home=tmp_path) as listener:
        assert isinstance(listener, socket.socket)
    assert not (tmp_path / "api-address").exists()
