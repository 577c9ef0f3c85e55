"""The settings of a connection, for any broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from producers.http.settings import HttpSettings
from producers.pubsub.settings import PubSubSettings
from producers.sqs.settings import SqsSettings
from triggerer.abc import install_connections
from triggerer.errors import ConfigurationError, UnknownConnection
from triggerer.pluginkit.connections import (
    ConnectionSettings,
    DeliverySettings,
    OptionalText,
    Positive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSettings(DeliverySettings):
    aliases: ClassVar[Mapping[str, str]] = {"pass": "password"}
    examples: ClassVar[Mapping[str, str]] = {"url": "shop://localhost"}

    url: str
    user: OptionalText = None
    password: OptionalText = field(default=None, repr=False)
    batch: Positive = 10
    mode: Literal["slow", "fast"] = "slow"

    def check(self, where: str) -> None:
        if self.user and not self.password:
            raise ConfigurationError(f"password is missing in {where}, which user needs")


def settings(**values: Any) -> ShopSettings:
    return ShopSettings.from_mapping("shop", {"url": "u", **values})


def test_values_come_from_the_mapping_aliases_and_texts_of_the_environment_included() -> None:
    found = settings(type="shop", batch="3", user="", **{"pass": "x"})
    assert (found.url, found.batch, found.user, found.password) == ("u", 3, None, "x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bach": 1}, r"unknown key 'bach' in \[connections.shop\] \(did you mean 'batch'\?\)"),
        ({"batch": 0}, "batch in .* must be above 0"),
        ({"batch": 1.5}, "a whole number is needed"),
        ({"mode": "medium"}, "one of slow or fast"),
        ({"max_deliveries": -1}, "must not be negative"),
        ({"user": "u"}, r"password is missing in \[connections.shop\], which user needs"),
    ],
)
def test_an_error_names_the_key_the_section_and_what_would_do(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShopSettings(DeliverySettings):
    optional: ClassVar[str | None] = "shop"

    batch: Positive = 10


def test_only_the_optional_connection_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(connection: str) -> Mapping[str, Any]:
        raise UnknownConnection(f"there is no connection {connection!r}")

    monkeypatch.setattr("triggerer.abc._resolve_connection", resolve)
    assert OpenShopSettings.load("shop") == OpenShopSettings()
    for kind, connection in ((OpenShopSettings, "shop2"), (ShopSettings, "shop")):
        with pytest.raises(UnknownConnection, match=f"there is no connection '{connection}'"):
            kind.load(connection)


@pytest.mark.parametrize(
    "settings", [HttpSettings, PubSubSettings, SqsSettings], ids=["http", "pubsub", "sqs"]
)
def test_brokers_that_need_no_key_need_no_section(
    settings: type[ConnectionSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a section, the vendor's own chain of credentials is used."""

    def resolve(connection: str) -> Mapping[str, Any]:
        raise UnknownConnection(f"there is no connection {connection!r}")

    monkeypatch.setattr("triggerer.abc._resolve_connection", resolve)
    assert settings.optional is not None
    assert settings.load(settings.optional) == settings.from_mapping("any", {})


def test_a_missing_value_is_asked_for_with_an_example() -> None:
    with pytest.raises(ConfigurationError, match=r"url is missing .*shop://localhost"):
        ShopSettings.from_mapping("shop", {})


def test_a_secret_is_in_no_error_and_in_no_repr() -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(password=["hunter2"])
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert "hunter2" not in repr(settings(password="hunter2"))


def test_no_limit_of_deliveries_is_said_by_zero_or_by_none() -> None:
    for value in (0, "0", "none", ""):
        assert settings(max_deliveries=value).delivery_policy().max_deliveries is None
    assert settings(max_deliveries=4).delivery_policy().max_deliveries == 4


def test_settings_are_loaded_from_the_configuration_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("triggerer.abc._resolve_connection", None)
    install_connections({"shop": {"url": "here"}}.__getitem__)
    assert ShopSettings.load("shop").url == "here"
