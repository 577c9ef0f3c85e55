"""The first contact with the cluster, and what was wrong with it."""

from __future__ import annotations

import anyio
from aiokafka import AIOKafkaConsumer
from aiokafka import errors as sdk
from aiokafka.conn import create_conn

from producers.kafka.errors import guarded, translate
from producers.kafka.settings import KafkaSettings
from triggerer.errors import BrokerUnavailable


async def start_consumer(consumer: AIOKafkaConsumer, settings: KafkaSettings, what: str) -> None:
    """Connect.

    Raises:
        BrokerUnavailable: No broker answers.
        BrokerRefused: One answers, and refuses the credentials or the protocol.
    """
    try:
        with anyio.fail_after(settings.request_timeout_ms / 1000):
            await guarded(consumer.start(), what)
    except TimeoutError as error:
        raise BrokerUnavailable(
            f"{what}: no answer in {settings.request_timeout_ms / 1000:.0f} s",
            hint="is the broker running, and does security_protocol fit its listener?",
        ) from error
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, sdk.KafkaConnectionError):
            await _raise_reason(settings, what)
        raise


async def _raise_reason(settings: KafkaSettings, what: str) -> None:
    """Raise what really happened: the client says of every failed bootstrap that it could not connect."""
    arguments = settings.client_arguments()
    address = arguments.pop("bootstrap_servers").split(",")[0].strip()
    arguments.pop("metadata_max_age_ms")
    host, _, port = address.rpartition(":")
    try:
        with anyio.fail_after(5):
            connection = await create_conn(host or address, int(port or 9092), **arguments)
        connection.close()
    except (sdk.KafkaError, OSError, TimeoutError, ValueError) as error:
        raise translate(error, what) from error
