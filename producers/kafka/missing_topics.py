"""Finds topics that do not exist and that the brokers will not create."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from aiokafka import errors as sdk
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

_AUTO_CREATE: Final = "auto.create.topics.enable"


async def find_missing(
    send: Callable[[Any], Awaitable[Any]], node: int, names: Collection[str]
) -> frozenset[str]:
    """Return the topics that do not exist, unless the broker creates missing topics (`auto.create.topics.enable`).

    If this user may not read that setting, the result is empty.

    Args:
        send: Sends a request to the broker, and returns the answer.
    Raises:
        BrokerError, NotImplementedError, KafkaError: The broker does not answer, or does not know a request.
    """
    answer = await send(MetadataRequest(sorted(names), allow_auto_topic_creation=False))
    unknown = sdk.UnknownTopicOrPartitionError
    missing = frozenset(name for code, name, *_ in answer.topics if sdk.for_code(code) is unknown)
    if not missing:
        return missing
    wanted = [(int(ConfigResourceType.BROKER), str(node), [_AUTO_CREATE])]
    answer = await send(DescribeConfigsRequest(wanted))
    for error_code, _, _, _, entries in answer.resources:
        told = {entry[0]: entry[1] for entry in entries}
        if sdk.for_code(error_code) is sdk.NoError and told.get(_AUTO_CREATE) == "false":
            return missing
    return frozenset()
