"""The API listens only on loopback, unless TLS or a proxy protects it. It refuses to start on a port that is taken."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from triggerer.api import listening
from triggerer.api.listening import is_loopback, open_listener, url_of
from triggerer.config.sections import ApiSettings
from triggerer.errors import ConfigurationError


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "triggerer.example"])
def test_an_address_that_others_reach_needs_tls_or_a_proxy(tmp_path: Path, host: str) -> None:
    with (
        pytest.raises(ConfigurationError, match="unencrypted") as refused,
        open_listener(ApiSettings(host=host, port=0), home=tmp_path),
    ):
        pass
    assert "behind_proxy" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("x", False)],
)
def test_loopback_is_known(host: str, is_ours: bool) -> None:
    assert is_loopback(host) is is_ours


def test_the_address_is_in_a_file_while_the_api_listens(tmp_path: Path) -> None:
    settings = ApiSettings(port=0)
    file = tmp_path / "home" / "api-address"
    with open_listener(settings, home=tmp_path / "home") as listener:
        address = file.read_text().strip()
        assert address == url_of(listener, settings)
        assert address == f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert not file.exists()


def test_behind_a_proxy_every_address_is_served_and_named_by_loopback(tmp_path: Path) -> None:
    settings = ApiSettings(host="0.0.0.0", port=0, behind_proxy=True)
    with open_listener(settings, home=tmp_path) as listener:
        assert url_of(listener, settings).startswith("http://127.0.0.1:")


def test_a_taken_port_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_PATIENCE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}") as refused,
            open_listener(ApiSettings(port=port), home=tmp_path),
        ):
            pass
    assert "[api] port" in str(refused.value.hint)
