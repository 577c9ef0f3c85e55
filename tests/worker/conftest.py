"""A fixture for all tests that open a Spark session in their own process."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _sockets_of_pyspark_end_with_their_files() -> Iterator[None]:
    """Close PySpark's sockets, which PySpark 4.1 leaves to the garbage collector. So warnings can stay errors."""
    try:
        import pyspark.core.context
        import pyspark.util
    except ImportError:
        # Without PySpark, the fixtures of the tests decide whether the tests are skipped or fail.
        yield
        return

    connect: Any = pyspark.util.local_connect_and_auth

    @functools.wraps(connect)
    def connect_and_close(*arguments: Any) -> tuple[Any, Any]:
        file, sock = connect(*arguments)
        # The connection stays open for as long as the file does.
        sock.close()
        return file, sock

    with pytest.MonkeyPatch.context() as patch:
        for module in (pyspark.util, pyspark.core.context):
            patch.setattr(module, "local_connect_and_auth", connect_and_close)
        yield
