from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis import Redis
from server import RedisServer
from triggerer_redis.entries import before, id_of, number_of
from triggerer_redis.producer import Entry, RedisSharedStreamProducer
from triggerer_redis.settings import RedisSettings
from triggerer_redis.watcher import RedisStreamEventTrigger

from triggerer.abc import AdvanceItem, AdvanceOutcome, install_connections
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError
from triggerer.testing import StreamHarness

ACKED = AdvanceOutcome(acked=1, failed=0, rejected=0)
FAILED = AdvanceOutcome(acked=0, failed=1, rejected=0)
REJECTED = AdvanceOutcome(acked=0, failed=0, rejected=1)
NOBODY = AdvanceOutcome(acked=0, failed=0, rejected=0)


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    with redis_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def configured(redis_server: RedisServer) -> None:
    configure(redis_server)


def configure(server: RedisServer, **settings: Any) -> None:
    """Make the tests' server the connection `redis`, with more settings for it."""
    connections = {"redis": {"host": "127.0.0.1", "port": server.port, **settings}}
    install_connections(connections.__getitem__)


class Reader:
    """A producer whose entries a test pulls and advances one by one."""

    def __init__(self, server: RedisServer, **settings: Any) -> None:
        settings = {"host": "127.0.0.1", "port": server.port, "redelivery_delay_s": 0.01} | settings
        self.producer = RedisSharedStreamProducer(
            ["orders"], group="g", settings=RedisSettings(**settings)
        )
        self._entries = self.producer.open_stream()

    async def pull(self) -> Entry:
        _, entry = await anext(self._entries)
        assert isinstance(entry, Entry)
        return entry

    async def advance(self, *items: tuple[Entry, AdvanceOutcome]) -> None:
        await self.producer.advance([AdvanceItem(*item) for item in items])

    async def close(self) -> None:
        await self._entries.aclose()  # type: ignore[attr-defined]
        await self.producer.aclose()


async def test_the_count_of_failures_survives_the_reader_and_is_shown_as_pending(
    redis_server: RedisServer, client: Redis
) -> None:
    entry_id = client.xadd("orders", {"value": "1"})
    for failures in (1, 2):
        reader = Reader(redis_server)
        entry = await reader.pull()
        assert entry.message.deliveries == failures
        await reader.advance((entry, FAILED))
        await reader.close()
        (pending,) = client.xpending_range("orders", "g", "-", "+", 10)
        assert (pending["message_id"], pending["times_delivered"]) == (entry_id, failures)
    reader = Reader(redis_server)
    await reader.advance((await reader.pull(), ACKED))
    await reader.close()
    assert client.xpending("orders", "g")["pending"] == 0


async def test_what_nobody_saw_comes_again_and_is_not_counted(
    redis_server: RedisServer, client: Redis
) -> None:
    client.xadd("orders", {"value": "1"})
    reader = Reader(redis_server, max_deliveries=1)
    for _ in range(3):
        entry = await reader.pull()
        assert entry.message.deliveries == 1
        await reader.advance((entry, NOBODY))
    await reader.close()
    assert client.xpending("orders", "g")["pending"] == 0
    assert not client.exists("orders:dead-letters")


async def test_a_dead_letter_has_all_fields_where_it_came_from_and_why(
    redis_server: RedisServer, client: Redis
) -> None:
    first = client.xadd("orders", {"value": "1", "shop": "7"})
    second = client.xadd("orders", {"value": b"\xff"})
    reader = Reader(redis_server, max_deliveries=1)
    await reader.advance((await reader.pull(), FAILED), (await reader.pull(), REJECTED))
    await reader.close()
    assert [fields for _, fields in client.xrange("orders:dead-letters")] == [
        {
            b"value": b"1",
            b"shop": b"7",
            b"triggerer-id": first,
            b"triggerer-reason": b"failed 1 times",
        },
        {b"value": b"\xff", b"triggerer-id": second, b"triggerer-reason": b"rejected"},
    ]


async def test_without_dead_letters_what_fails_is_never_given_up(
    redis_server: RedisServer, client: Redis
) -> None:
    client.xadd("orders", {"value": "1"})
    reader = Reader(redis_server, max_deliveries=1, dead_letters=False)
    for failures in range(1, 4):
        entry = await reader.pull()
        assert entry.message.deliveries == failures
        await reader.advance((entry, FAILED))
    await reader.close()


async def test_a_stream_that_is_made_anew_with_the_same_ids_has_other_keys(
    redis_server: RedisServer, client: Redis
) -> None:
    client.xadd("orders", {"value": "old"}, id="1-1")
    reader = Reader(redis_server)
    old = await reader.pull()
    await reader.advance((old, ACKED))
    client.delete("orders")
    client.xadd("orders", {"value": "new"}, id="2-1")
    with pytest.raises(BrokerUnavailable, match="stream orders was deleted"):
        await reader.pull()
    await reader.close()
    client.delete("orders")
    client.xadd("orders", {"value": "new"}, id="1-1")
    reader = Reader(redis_server)
    new = await reader.pull()
    await reader.close()
    assert (old.id, new.id, new.message.value) == ("1-1", "1-1", b"new")
    assert reader.producer.get_idempotency_key(old) != reader.producer.get_idempotency_key(new)


async def test_an_advance_to_a_stream_that_was_deleted_ends_the_group(
    redis_server: RedisServer, client: Redis
) -> None:
    client.xadd("orders", {"value": "1"})
    reader = Reader(redis_server)
    entry = await reader.pull()
    client.delete("orders")
    with pytest.raises(BrokerError, match="advance stream orders"):
        await reader.advance((entry, ACKED))
    await reader.close()


async def test_what_was_trimmed_before_it_was_read_is_reported(
    redis_server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for value in range(5):
        client.xadd("orders", {"value": value})
    client.xtrim("orders", maxlen=2, approximate=False)
    reader = Reader(redis_server)
    with caplog.at_level(logging.WARNING):
        assert (await reader.pull()).message.value == b"3"
    await reader.close()
    assert "3 of the entries of stream orders were deleted unread" in caplog.text


async def test_what_was_trimmed_after_it_was_consumed_is_not_reported_and_the_lag_is_known(
    redis_server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for value in range(5):
        client.xadd("orders", {"value": value})
    reader = Reader(redis_server)
    await reader.advance(*[(await reader.pull(), ACKED) for _ in range(3)])
    await reader.close()
    assert client.xinfo_groups("orders")[0]["lag"] == 2
    client.xtrim("orders", maxlen=2, approximate=False)
    reader = Reader(redis_server)
    with caplog.at_level(logging.WARNING):
        assert (await reader.pull()).message.value == b"3"
    await reader.close()
    assert not caplog.records


def test_positions_grow_with_ids_and_lead_back_to_them() -> None:
    ids = ["0-1", "1-0", "1-1", "1764032000000-0", "1764032000000-17", "1764032000001-0"]
    numbers = [number_of(entry_id) for entry_id in ids]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2**63
    assert [id_of(number) for number in numbers] == ids
    assert before("5-3") == "5-2"
    assert before("5-0") == f"4-{2**64 - 1}"
    assert before("0-0") == "0-0"


@pytest.mark.usefixtures("configured")
async def test_a_fallen_watcher_reads_its_stream_again_beside_its_sibling(
    redis_server: RedisServer, client: Redis
) -> None:
    async with StreamHarness(catch_up=True) as streams:
        well = await streams.add(RedisStreamEventTrigger("orders"))
        ill = await streams.add(FallingTrigger("orders", partition_key="n"))
        for n in range(3):
            client.xadd("orders", {"value": f'{{"n": {n}}}'})
        await wait_for(streams, lambda: len(well.events) == 3 and ill.error is not None)
        FallingTrigger.is_ill = False
        await streams.restart(ill)
        await wait_for(streams, lambda: len(ill.events) == 3)
    assert [event.payload["value"]["n"] for event in ill.events] == [0, 1, 2]


class FallingTrigger(RedisStreamEventTrigger):
    is_ill = True

    async def filter_shared_stream(self, shared_stream: Any) -> Any:
        if self.is_ill:
            async for message in shared_stream:
                raise ValueError(f"cannot use {message.value!r}")
        async for event in super().filter_shared_stream(shared_stream):
            yield event


async def wait_for(streams: StreamHarness, condition: Any) -> None:
    with anyio.fail_after(20):
        while not condition():
            await streams.quiesce()
            await anyio.sleep(0.02)


@pytest.mark.usefixtures("configured")
async def test_check_tells_a_missing_stream_from_a_key_of_another_kind(client: Redis) -> None:
    client.set("orders", "1")
    with pytest.raises(BrokerRefused, match=r"orders at .* is no stream, but a string"):
        await RedisStreamEventTrigger("orders").check_source()
    with pytest.raises(BrokerUnavailable, match="there is no stream returns at"):
        await RedisStreamEventTrigger("returns").check_source()
    client.xadd("returns", {"value": "1"})
    await RedisStreamEventTrigger("returns").check_source()


async def test_a_server_that_may_evict_or_forget_is_found(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with RedisServer(tmp_path, "--appendonly", "no", "--maxmemory-policy", "allkeys-lru") as server:
        configure(server)
        facts = await RedisStreamEventTrigger("orders").describe_delivery(ask=True)
    assert [finding.text for finding in facts.findings] == [
        "Redis keeps no append-only file: a crash loses entries that nobody has read",
        "Redis may evict the stream when memory is short",
    ]
    configure(redis_server)
    assert not (await RedisStreamEventTrigger("orders").describe_delivery(ask=True)).findings


async def test_a_server_that_stands_still_counts_as_away(
    redis_server: RedisServer, client: Redis
) -> None:
    client.xadd("orders", {"value": "1"})
    reader = Reader(redis_server, answer_within_s=0.5)
    entry = await reader.pull()
    with redis_server.standing_still():
        with anyio.fail_after(20):
            with pytest.raises(BrokerUnavailable, match="advance stream orders"):
                await reader.advance((entry, ACKED))
            with pytest.raises(BrokerUnavailable, match="read at"):
                await reader.pull()
    await reader.close()


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({}, 10), ({"max_deliveries": 0}, None), ({"dead_letters": False}, None)],
)
async def test_the_limit_that_is_stated_is_the_one_that_is_kept(
    redis_server: RedisServer, settings: dict[str, Any], limit: int | None
) -> None:
    configure(redis_server, **settings)
    facts = await RedisStreamEventTrigger("orders").describe_delivery(ask=False)
    assert facts.drops_after == limit


async def test_a_wrong_password_is_refused_and_not_shown(
    redis_server: RedisServer, client: Redis
) -> None:
    client.acl_setuser(
        "triggerer", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"]
    )
    client.xadd("orders", {"value": "1"})
    reader = Reader(redis_server, username="triggerer", password="right")
    await reader.pull()
    await reader.close()
    reader = Reader(redis_server, username="triggerer", password="s3cret")
    with pytest.raises(BrokerRefused) as refused:
        await reader.pull()
    await reader.close()
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(RedisSettings(password="s3cret"))


def test_an_unknown_setting_names_the_nearest_and_shows_no_secret() -> None:
    with pytest.raises(ConfigurationError, match="password") as refused:
        RedisSettings.from_mapping("redis", {"pasword": "s3cret"})
    assert "s3cret" not in str(refused.value)
