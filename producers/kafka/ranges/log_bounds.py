"""Reads the bounds of logs for a task that is about to read ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from triggerer.errors import BrokerUnavailable

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings


class Bounds(NamedTuple):
    """The offsets that a partition's log has: from `first` up to, and without, `end`."""

    first: int
    end: int


_Logs = dict[str, tuple[str | None, dict[int, Bounds]]]


def read_logs(
    topics: Collection[str], *, connection: str, bootstrap_servers: str | None
) -> Mapping[str, tuple[str | None, Mapping[int, Bounds]]]:
    """Return each topic's id, and the first offset and the end of each partition. Can be called in any thread.

    Args:
        bootstrap_servers: The brokers to connect to, without the connection's settings. None: use the connection.
    Raises:
        ConfigurationError: The connection is not usable.
        BrokerUnavailable: The brokers do not answer, or a topic or leader changed during the look-up. Try again.
        BrokerRefused: A topic does not exist, or this user may not read it.
    """
    settings = _settings(connection, bootstrap_servers)
    # Use a separate thread, because the calling thread may be running an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="kafka-ranges") as thread:
        return thread.submit(anyio.run, partial(_read, settings, sorted(topics))).result()


def servers_of(connection: str) -> tuple[str, str]:
    """Return the brokers of a connection and its security protocol."""
    settings = _settings(connection, None)
    return settings.bootstrap_servers, settings.security_protocol


def _settings(connection: str, bootstrap_servers: str | None) -> KafkaSettings:
    # Imported here, because DAG files import this module, and would be slower if they also loaded pydantic.
    from producers.kafka.settings import KafkaSettings

    if bootstrap_servers is not None:
        return KafkaSettings.from_mapping(connection, {"bootstrap_servers": bootstrap_servers})
    return KafkaSettings.load(connection)


async def _read(settings: KafkaSettings, topics: list[str]) -> _Logs:
    from producers.kafka.positions.starting_positions import names_of
    from producers.kafka.ranges.bookmark import RangeBookmark
    from producers.kafka.ranges.log_ends import open_log_ends

    found: _Logs = {}
    async with open_log_ends(settings, topics, "earliest") as ends:
        for view in await ends.look_up(RangeBookmark()):
            _, partitions = found.setdefault(view.topic, (view.topic_id, {}))
            partitions[view.partition] = Bounds(view.first, view.end)
        if ends.left_out:
            # The caller would report a missing partition as lost, so raise an error instead.
            raise BrokerUnavailable(
                f"{names_of(ends.left_out)} at {settings.bootstrap_servers} changed during the look-up of their ends:"
                " the topic was created again, or a leader was elected",
                hint="try again",
            )
    return found
