"""The pytest fixtures, in a separate test session like a plugin author's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFTEST = 'pytest_plugins = ["triggerer.testing.pytest_plugin"]\n'
TESTS = """\
import anyio
import pytest
from triggerer.abc import BaseEventTrigger, TriggerEvent
from triggerer.testing import InMemoryBroker, StreamHarness

pytestmark = pytest.mark.{mark}
BROKERS = {{}}


class Watching(BaseEventTrigger):
    def serialize(self):
        return "x.Watching", {{}}

    def shared_stream_key(self):
        return "memory"

    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        return BROKERS["now"].producer()

    async def filter_shared_stream(self, shared_stream):
        async for value in shared_stream:
            yield TriggerEvent(value)


async def test_streams_is_open(streams, memory_broker):
    BROKERS["now"] = memory_broker
    memory_broker.publish(1, 2)
    one = await streams.add(Watching())
    await streams.quiesce()
    assert [event.payload for event in one.events] == [1, 2]
    assert memory_broker.committed() == 2


@pytest.mark.streams(persistence="manual")
async def test_with_options(streams, memory_broker):
    BROKERS["now"] = memory_broker
    memory_broker.publish(1)
    one = await streams.add(Watching())
    await streams.quiesce()
    assert (len(one.events), len(one.unpersisted), memory_broker.committed()) == (0, 1, 0)
"""


@pytest.mark.parametrize("mark", ["asyncio", "anyio"])
def test_the_fixtures_serve_both_plugins_for_asynchronous_tests(tmp_path: Path, mark: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST + ANYIO_ONLY[mark])
    (tmp_path / "test_it.py").write_text(TESTS.format(mark=mark))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "--strict-markers", *OPTIONS[mark]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


ANYIO_ONLY = {
    "asyncio": "",
    "anyio": (
        "import sys\n"
        "import pytest\n"
        "sys.modules['pytest_asyncio'] = None  # as if it were not installed\n"
        "@pytest.fixture\n"
        "def anyio_backend():\n"
        "    return 'asyncio'\n"
    ),
}
# With "anyio", pytest-asyncio is switched off, as if only anyio's plugin were installed.
OPTIONS = {
    "asyncio": ["-o", "asyncio_default_fixture_loop_scope=function"],
    "anyio": ["-p", "no:asyncio"],
}
