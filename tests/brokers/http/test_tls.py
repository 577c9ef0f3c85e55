"""A server's certificate is verified, unless the connection says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.http.server import Server, serving
from tests.services.availability import skip_or_fail
from tests.services.certificates import Authority
from tests.services.process import ServiceUnavailable
from triggerer.errors import BrokerRefused, ConfigurationError
from watchers.http import HttpPollTrigger


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    try:
        return Authority(tmp_path_factory.mktemp("authority"))
    except ServiceUnavailable as error:
        skip_or_fail(str(error))


@pytest.fixture
def secure(authority: Authority, tmp_path: Path) -> Iterator[Server]:
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    authority.issue(certificate, key, days=1)
    with serving(certificate, key) as running:
        yield running


async def test_an_unknown_authority_is_refused_with_what_to_do(
    secure: Server, connection: dict[str, Any]
) -> None:
    with pytest.raises(BrokerRefused, match=r"certificate cannot be verified.*verify = "):
        await HttpPollTrigger(secure.url).check_source()
    assert secure.asked == []


@pytest.mark.parametrize("verify", [False, "false"])
async def test_verification_can_be_switched_off(
    secure: Server, connection: dict[str, Any], verify: object
) -> None:
    connection["verify"] = verify
    await HttpPollTrigger(secure.url).check_source()
    assert len(secure.asked) == 1


async def test_a_private_authority_can_be_trusted(
    secure: Server, authority: Authority, connection: dict[str, Any]
) -> None:
    connection["verify"] = str(authority.file)
    await HttpPollTrigger(secure.url).check_source()
    assert len(secure.asked) == 1


async def test_a_file_that_holds_no_authority_is_a_mistake_of_the_settings(
    secure: Server, connection: dict[str, Any]
) -> None:
    connection["verify"] = "/nowhere/authority.pem"
    with pytest.raises(ConfigurationError, match="cannot be read from /nowhere"):
        await HttpPollTrigger(secure.url).check_source()
