"""Fixtures for all tests: real servers, stores on them, and a watch on tasks left behind."""

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from tests.services.availability import keep_logs, restart_stopped, service
from tests.services.kafka import KafkaServer, open_kafka
from tests.services.postgres import PostgresServer, open_postgres
from tests.services.spark import SparkCluster, open_spark_cluster

_SERVERS = {"postgres_server", "kafka_server", "spark_cluster"}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the session. A test that stops it need not start it again."""
    with service(open_postgres()) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """One Kafka broker for the session; use topics and groups with names of your own."""
    with service(open_kafka()) as server:
        yield server


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """One standalone cluster for the session: a master, and a worker with 2 cores."""
    with service(open_spark_cluster()) as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """SQLAlchemy's URL of an empty PostgreSQL database that is this test's alone."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres_server.create_database(name)
    postgres_server.start()
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """SQLAlchemy's URL of a SQLite file that does not exist yet."""
    return f"sqlite+aiosqlite:///{tmp_path / 'triggerer.sqlite'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty database's URL: the test runs once on each database that we support."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)
    return url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, so that `-m "not services"` is a quick run."""
    for item in items:
        if _SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)


def pytest_runtest_setup() -> None:
    """A server that one test stopped is there for the next."""
    restart_stopped()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the servers' logs below a failure."""
    report = yield
    if report.failed and item.get_closest_marker("services"):
        report.sections.extend(keep_logs())
    return report


@pytest.fixture(autouse=True)
def _tasks_end_with_their_test(request: pytest.FixtureRequest) -> None:
    # Only async tests get a loop; set up first, so that it looks after all other fixtures are gone.
    if isinstance(request.node, pytest.Function) and inspect.iscoroutinefunction(request.node.obj):
        request.getfixturevalue("_no_task_is_left")


@pytest.fixture
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    for _ in range(5):  # turns of the loop for tasks that are just ending
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        names = "\n".join(f"  {task.get_name()}: {task.get_coro()!r}" for task in left)
        pytest.fail(f"the test left {len(left)} tasks behind:\n{names}", pytrace=False)
