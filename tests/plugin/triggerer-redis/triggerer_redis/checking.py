"""Looks at streams and at the server, without reading an entry; for `triggerer check`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis

from triggerer.abc import DeliveryFacts, Finding
from triggerer.errors import BrokerRefused, BrokerUnavailable
from triggerer_redis.settings import RedisSettings, ask


async def check_streams(settings: RedisSettings, streams: Iterable[str]) -> None:
    """Look whether they are there.

    Raises:
        BrokerRefused, BrokerUnavailable: One is not, or not yet, or Redis does not answer.
    """
    # As in the producer: its stubs cannot tell bytes from text.
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
    """What becomes of an entry; the server is asked only if `ask`."""
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
    """What the server's settings mean for what it holds."""
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
