"""Checks streams and the server for `triggerer check`, without reading an entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis

from triggerer.abc import DeliveryFacts, Finding
from triggerer.errors import BrokerRefused, BrokerUnavailable
from triggerer_redis.settings import RedisSettings, ask


async def check_streams(settings: RedisSettings, streams: Iterable[str]) -> None:
    """Check that all of the streams exist.

    Raises:
        BrokerUnavailable: A stream does not exist yet, or Redis does not answer.
        BrokerRefused: A key of this name is no stream, or Redis refuses the command.
    """
    # The stubs of the client cannot tell bytes from text.
    client: Any = settings.connect()
    try:
        for stream in streams:
            kind = await ask(client.type(stream), f"look at {stream} at {settings.server}")
            if kind == b"none":
                raise BrokerUnavailable(
                    f"there is no stream {stream} at {settings.server} yet",
                    hint="It is made, empty, when the service starts.",
                )
            if kind != b"stream":
                raise BrokerRefused(
                    f"{stream} at {settings.server} is no stream, but a {kind.decode()}"
                )
    finally:
        await client.aclose()


async def describe_delivery(settings: RedisSettings, *, ask: bool) -> DeliveryFacts:
    """Describe when an entry counts as done, and when it is dropped. The server's settings are read only with `ask`."""
    limit = settings.delivery_policy().max_deliveries
    return DeliveryFacts(
        is_acknowledged=True,
        because="the group's position is moved after the events are durable",
        key="stream, its incarnation and the entry's id",
        drops_after=limit if settings.dead_letters else None,
        has_dead_letters=settings.dead_letters,
        dead_letter_setting="dead_letters",
        findings=await _look_for_findings(settings) if ask else (),
    )


async def _look_for_findings(settings: RedisSettings) -> tuple[Finding, ...]:
    """Return the server's settings that can lose entries, as findings."""
    client: Redis = settings.connect()
    findings = []
    try:
        what = f"ask for the settings of {settings.server}"
        try:
            found = await ask(client.config_get("appendonly", "maxmemory-policy"), what)
        except BrokerRefused:
            return (Finding("Redis does not say whether it keeps entries on disk"),)
        if found.get("appendonly") != "yes":
            findings.append(
                Finding(
                    "Redis keeps no append-only file: a crash loses entries that nobody has read",
                    hint="Set appendonly yes.",
                )
            )
        if str(found.get("maxmemory-policy", "")).startswith("allkeys"):
            findings.append(
                Finding(
                    "Redis may evict the stream when memory is short",
                    hint="Set maxmemory-policy to noeviction or volatile-lru.",
                )
            )
    finally:
        await client.aclose()
    return tuple(findings)
