"""Checks that a cluster answers and has the topics, without joining a group; for `triggerer check`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import anyio
from aiokafka import errors as sdk
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest

from producers.kafka.connection.connecting import raise_reason
from producers.kafka.connection.topics import is_pattern
from producers.kafka.errors import guarded
from producers.kafka.wire.cluster import raise_for_topic
from triggerer.errors import BrokerUnavailable

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

_CLOSE_TIMEOUT_S = 2.0


async def check_topics(settings: KafkaSettings, topics: Collection[str]) -> None:
    """Connect, and look up the topics without creating any. The caller sets a deadline.

    Raises:
        ConfigurationError: A certificate or key cannot be read, or a topic would be its own dead-letter topic.
        BrokerRefused: The credentials or the protocol are refused, or a topic does not exist or may not be read.
        BrokerUnavailable: No broker answers.
    """
    names = [name for name in topics if not is_pattern(name)]
    settings.check_dead_letters(names)
    where = f"at {settings.bootstrap_servers}"
    what = f"connection to Kafka {where}"
    client: Any = AIOKafkaClient(**settings.client_arguments())
    try:
        try:
            await guarded(client.bootstrap(), what)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, sdk.KafkaConnectionError):
                await raise_reason(settings, what)
            raise
        node = client.get_random_node()
        if node is None:
            raise BrokerUnavailable(f"{what}: no broker is known")
        if not names:
            # All names are patterns, so there is nothing to check. Matching topics need not exist
            # yet, and brokers hide the topics that this user may not read.
            return
        request = MetadataRequest(sorted(names), allow_auto_topic_creation=False)
        response: Any = await guarded(client.send(node, request), what)
        for error_code, name, *_ in response.topics:
            raise_for_topic(sdk.for_code(error_code), name, where)
    finally:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await client.close()
