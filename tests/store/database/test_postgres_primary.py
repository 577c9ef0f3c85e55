"""The choice of the PostgreSQL server: among several, after a failover, and with certificates."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text

from tests.services.availability import service, skip_or_fail
from tests.services.certificates import Authority
from tests.services.databases.postgres import PostgresServer, open_postgres, open_standby
from tests.services.process import ServiceUnavailable, free_ports
from tests.services.tcp_proxy import open_tcp_proxy
from triggerer.errors import ConfigurationError, StoreRefused, StoreUnavailable
from triggerer.store.database.opening import open_database
from triggerer.store.database.postgres.hosts import Host, read_settings
from triggerer.store.database.postgres.primary import Primary
from triggerer.store.database.transactions import Database
from triggerer.store.database.urls import describe, parse_database_url
from triggerer.store.database.wakeups.listening import check_announcements


def test_addresses_of_version_6_are_shown_as_they_are_written() -> None:
    url = "postgresql://u@[::1]:1,[::2]/db"
    assert describe(parse_database_url(url)).endswith("host=[::1]:1,[::2]")
    assert [str(host) for host in read_settings(parse_database_url(url)).hosts] == [
        "[::1]:1",
        "[::2]:5432",
    ]


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u:p@h/db", [("h", None)]),
        ("postgresql://u:p@h:1/db?port=2", [("h", 2)]),
        ("postgresql://u:p@h-1:1,h-2:2/db?sslmode=require", [("h-1", 1), ("h-2", 2)]),
        ("postgres://h-1,h-2:2", [("h-1", None), ("h-2", 2)]),
        ("postgresql://u:p,@x@[::1]:1,[::2]/db", [("::1", 1), ("::2", None)]),
        ("postgresql://u@/db?host=::1,[::2]&port=5433", [("::1", 5433), ("::2", 5433)]),
        ("postgresql://u@/db?host=h-1,h-2&port=1,2", [("h-1", 1), ("h-2", 2)]),
        ("postgresql://u@/db?host=h-1&host=h-2&port=3", [("h-1", 3), ("h-2", 3)]),
        ("postgresql://u@/db?host=h-1:1&host=h-2:2", [("h-1", 1), ("h-2", 2)]),
        ("postgresql://u@/db?host=/run/postgresql", [("/run/postgresql", None)]),
        ("postgresql:///db", [(None, None)]),
    ],
)
def test_a_url_names_its_hosts_as_libpqs_users_write_them(
    url: str, hosts: list[tuple[str | None, int | None]]
) -> None:
    settings = read_settings(parse_database_url(url))
    assert settings.hosts == tuple(Host(*host) for host in hosts)
    assert settings.takes_writes == (len(hosts) > 1)


@pytest.mark.parametrize(
    "option",
    ["host=a,b&port=1,2,3", "host=a:1&port=2", "host=,a", "port=x", "connect_timeout=x",
     "target_session_attrs=standby"],
)  # fmt: skip
def test_hosts_and_options_that_cannot_be_are_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[database\] url"):
        read_settings(parse_database_url(f"postgresql://u@/db?{option}"))


def test_a_url_with_several_hosts_is_shown_without_its_password() -> None:
    shown = describe(parse_database_url("postgresql://u:secret@h-1:1,h-2:2/db"))
    assert "secret" not in shown
    assert "h-1:1,h-2:2" in shown


class Pair:
    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary = primary
        self.standby = standby


@pytest.fixture
def pair() -> Iterator[Pair]:
    with service(open_postgres()) as primary, service(open_standby(primary)) as standby:
        yield Pair(primary, standby)


def _url(*ports: int) -> str:
    return f"postgresql://postgres@{','.join(f'127.0.0.1:{port}' for port in ports)}/postgres"


async def _port(database: Database) -> int:
    """Return the port of the server that transactions reach, checked through both engines."""
    async with database.transaction() as session:
        by_engine = await session.scalar(text("SELECT current_setting('port')::int"))
    assert database.primary is not None
    connection = await database.primary.connect()
    by_itself = await connection.fetchval("SELECT current_setting('port')::int")
    await connection.close()
    assert by_itself == by_engine
    return int(by_itself)


@pytest.mark.services
async def test_of_several_hosts_the_primary_is_taken(pair: Pair) -> None:
    (closed,) = free_ports(1)
    ports = (closed, pair.standby.port, pair.primary.port)
    async with open_database(_url(*ports)) as database:
        assert await _port(database) == pair.primary.port
    with pytest.raises(StoreUnavailable, match=rf"{pair.standby.port} takes no writes"):
        async with open_database(_url(closed, pair.standby.port)):
            pass


@pytest.mark.services
async def test_a_host_that_says_nothing_keeps_nobody_from_the_next_one(
    postgres_server: PostgresServer,
) -> None:
    with open_tcp_proxy(postgres_server.port) as gone:
        gone.silence()
        url = f"{_url(gone.port, postgres_server.port)}?connect_timeout=1"
        async with open_database(url) as database:
            began = time.monotonic()
            # The silent server is no longer tried first.
            assert await _port(database) == postgres_server.port
            assert time.monotonic() - began < 1


@pytest.mark.services
async def test_a_former_primary_is_no_longer_used(pair: Pair) -> None:
    with open_tcp_proxy(pair.primary.port) as proxy:
        both = _url(pair.primary.port, pair.standby.port)
        async with open_database(_url(proxy.port)) as database, open_database(both) as of_both:
            assert await _port(database) == await _port(of_both) == pair.primary.port
            pair.standby.promote()
            proxy.lead_to(pair.standby.port)
            assert database.primary is not None
            assert of_both.primary is not None
            await database.primary.check_for_promotion()
            await of_both.primary.check_for_promotion()
            # The former primary still runs and takes writes, and both pools have connections to it.
            assert await _port(database) == await _port(of_both) == pair.standby.port
            proxy.lead_to(pair.primary.port)
            with pytest.raises(StoreUnavailable, match="former primary: its timeline is 1, and 2"):
                await database.primary.connect()


@pytest.mark.services
async def test_a_service_that_starts_while_two_servers_take_writes_finds_the_promoted_one(
    pair: Pair,
) -> None:
    pair.standby.promote()
    async with open_database(_url(pair.primary.port, pair.standby.port)) as database:
        await check_announcements(database)
        assert await _port(database) == pair.standby.port


@pytest.mark.services
async def test_a_single_url_may_lead_to_another_cluster(pair: Pair) -> None:
    with service(open_postgres(durable=False)) as other, open_tcp_proxy(other.port) as proxy:
        primary = Primary(parse_database_url(_url(proxy.port)), name="x")
        connection = await primary.connect()
        proxy.lead_to(pair.primary.port)
        await primary.check_for_promotion()
        assert not primary.is_current(connection)
        connection.terminate()
        mixed = Primary(parse_database_url(_url(other.port, pair.primary.port)), name="x")
        (await mixed.connect()).terminate()
        other.stop()
        with pytest.raises(StoreUnavailable, match="another cluster"):
            await mixed.connect()


@pytest.mark.services
async def test_a_certificate_that_expires_is_an_outage_and_one_that_is_replaced_ends_it(
    tmp_path: Path,
) -> None:
    try:
        authority, unknown = Authority(tmp_path), Authority(tmp_path, name="unknown")
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))
    trusted = tmp_path / "trusted.crt"
    shutil.copyfile(authority.file, trusted)
    with service(open_postgres(durable=False)) as server:

        def install(days: int, by: Authority = authority) -> None:
            names = ("server.crt", "server.key")
            by.issue(*(tmp_path / name for name in names), days=days)
            server.install(*(tmp_path / name for name in names))
            server.set(ssl="on", ssl_cert_file=names[0], ssl_key_file=names[1])

        install(days=30)
        url = (
            f"postgresql://postgres@localhost:{server.port}/postgres"
            f"?sslmode=verify-full&sslrootcert={trusted}"
        )
        async with open_database(url) as database:
            assert database.primary is not None
            connection = await database.primary.connect()
            assert await connection.fetchval(
                "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            )
            install(days=-1)
            with pytest.raises(StoreUnavailable, match="certificate has expired") as refused:
                await _until_it_changes(url)
            assert "are read again for each connection" in (refused.value.hint or "")
            # An open connection stays open.
            assert await connection.fetchval("SELECT 1")
            install(days=30, by=unknown)
            with pytest.raises(StoreUnavailable, match="certificate verify failed"):
                await _until_it_changes(url)
            # While the process runs, the trusted certificate is removed, then half-written, then complete.
            trusted.unlink()
            with pytest.raises(StoreUnavailable, match="No such file"):
                await _until_it_changes(url)
            trusted.write_bytes(unknown.file.read_bytes()[:300])
            with pytest.raises(StoreUnavailable):
                await _until_it_changes(url)
            shutil.copyfile(unknown.file, trusted)
            assert await _port(database) == server.port
            await connection.close()


async def test_a_default_certificate_that_is_not_there_may_come_back(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # The error must be a `StoreRefused`, which blames the settings or the server. Other classes would blame a row.
    with pytest.raises(StoreRefused, match=r"root.crt"):
        async with open_database(
            f"postgresql://postgres@localhost:{postgres_server.port}/postgres?sslmode=verify-full"
        ):
            pass


async def _until_it_changes(url: str) -> None:
    """Connect repeatedly, and raise the first error.

    The first attempts may succeed, because the server takes a moment to reload its certificate files.
    """
    with anyio.fail_after(10):
        while True:
            async with open_database(url):
                await anyio.sleep(0.05)
