import pytest

from triggerer.errors import ConfigurationError
from triggerer.worker.spark.sessions.reachability import (
    connect_endpoint,
    master_endpoints,
    without_parameters,
)


@pytest.mark.parametrize(
    ("master", "shown"),
    [
        ("local[*]", []),
        ("yarn", []),
        ("spark://one:7077,two:7078", ["one:7077", "two:7078"]),
        ("spark://one", ["one:7077"]),
        ("k8s://https://api:6443", ["api:6443"]),
        ("k8s://api", ["api:443"]),
        ("k8s://http://api", ["api:80"]),
        ("spark://[::1]:7077", ["[::1]:7077"]),
    ],
)
def test_the_addresses_of_a_master_are_read_from_it(master: str, shown: list[str]) -> None:
    assert [str(endpoint) for endpoint in master_endpoints(master)] == shown


def test_a_connect_url_has_a_port_of_its_own_by_default() -> None:
    assert str(connect_endpoint("sc://host/;token=x")) == "host:15002"
    assert str(connect_endpoint("sc://host:1/;use_ssl=true")) == "host:1"


@pytest.mark.parametrize("remote", ["sc://", "sc:///;token=secret", "sc://host:port/;token=secret"])
def test_an_address_that_cannot_be_read_is_refused_without_showing_its_token(remote: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect_endpoint(remote)
    assert "secret" not in str(caught.value)


def test_a_token_is_not_shown() -> None:
    assert without_parameters("sc://h:1/;token=secret;x=y") == "sc://h:1/;..."
