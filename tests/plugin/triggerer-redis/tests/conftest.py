from __future__ import annotations

from collections.abc import Iterator

import pytest
from server import RedisServer, find_server

pytest_plugins = ["triggerer.testing.pytest_plugin"]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    # Where every service is required, `tests/plugin/test_redis_package.py` fails before it starts these tests.
    if find_server() is None:
        pytest.skip("redis-server is not installed")
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
