"""Ranges of Kafka offsets, one for each partition, for `spark.read.format("kafka")`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple

from triggerer.errors import BrokenRanges, ConfigurationError
from triggerer.offset_ranges.losses import PartitionRange, compare

logger = logging.getLogger(__name__)


class Gap(NamedTuple):
    """Consecutive offsets of one partition that no event's range contains.

    The offsets lie between two ranges, or before the first range if this range's event reports deleted offsets.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start} to {self.end - 1}"


@dataclass(frozen=True, slots=True)
class KafkaRanges:
    """One range for each partition.

    Attributes:
        ranges: Sorted by topic and partition.
        gaps: Offsets inside or before these ranges for which there is no event. Empty if gaps were not allowed. If the
            log still has messages in a gap inside a range, Spark reads these messages too.
    """

    ranges: tuple[PartitionRange, ...]
    gaps: tuple[Gap, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def topics(self) -> list[str]:
        """The topics, in alphabetical order."""
        return sorted({one.topic for one in self.ranges})

    @property
    def offsets(self) -> int:
        """The number of offsets. It may exceed the number of messages, because of transactions and compaction."""
        return sum(one.end - one.start for one in self.ranges)

    @property
    def starting_offsets(self) -> str:
        """The option `startingOffsets`, as JSON text."""
        return self._by_topic(lambda one: one.start)

    @property
    def ending_offsets(self) -> str:
        """The option `endingOffsets`, as JSON text. Spark does not read the message at an ending offset."""
        return self._by_topic(lambda one: one.end)

    @property
    def assign(self) -> str:
        """The option `assign`, as JSON text. The option `subscribe` would require offsets for every partition."""
        found: dict[str, list[int]] = {}
        for one in self.ranges:
            found.setdefault(one.topic, []).append(one.partition)
        return json.dumps(found)

    @property
    def options(self) -> dict[str, str]:
        """The options of Spark's source for these ranges, without the servers."""
        return {
            "assign": self.assign,
            "startingOffsets": self.starting_offsets,
            "endingOffsets": self.ending_offsets,
            "failOnDataLoss": "true",
        }

    def _by_topic(self, offset: Callable[[PartitionRange], int]) -> str:
        found: dict[str, dict[str, int]] = {}
        for one in self.ranges:
            found.setdefault(one.topic, {})[str(one.partition)] = offset(one)
        return json.dumps(found)

    def check(
        self,
        *,
        connection: str = "kafka",
        bootstrap_servers: str | None = None,
        on_data_loss: Literal["fail", "skip"] = "fail",
    ) -> KafkaRanges:
        """Compare the ranges with the brokers' logs, and return the ranges that can be read.

        Call this before Spark reads, because Spark waits for ever for offsets beyond the end of a log.

        Args:
            connection: The section `[connections.<connection>]` of the configuration.
            bootstrap_servers: Used instead of `connection`: the addresses of brokers without encryption and login.
            on_data_loss: If offsets are missing, "fail" raises `BrokenRanges`. "skip" logs a warning and leaves these
                offsets out.
        Raises:
            BrokenRanges: With "fail": offsets were deleted or lost, or a topic was deleted and created again.
            BrokerError: The brokers do not answer, or do not have a topic.
            ConfigurationError: The Kafka client is not installed, or there is no such connection.
        """
        if on_data_loss not in ("fail", "skip"):
            raise ValueError(f"on_data_loss is 'fail' or 'skip', not {on_data_loss!r}")
        if not self:
            return self
        logs = _kafka().read_logs(
            self.topics, connection=connection, bootstrap_servers=bootstrap_servers
        )
        left, losses = compare(self.ranges, logs)
        if losses and on_data_loss == "fail":
            raise BrokenRanges(
                "; ".join(losses),
                hint='on_data_loss="skip" accepts the loss; a higher retention.ms of the topic avoids the next one',
            )
        for loss in losses:
            logger.warning("%s", loss)
        partitions = {(one.topic, one.partition) for one in left}
        gaps = tuple(gap for gap in self.gaps if (gap.topic, gap.partition) in partitions)
        return replace(self, ranges=left, gaps=gaps)

    def read(
        self,
        spark: Any,
        *,
        connection: str = "kafka",
        bootstrap_servers: str | None = None,
        on_data_loss: Literal["fail", "skip"] = "fail",
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check the ranges as `check` does, and return Spark's DataFrame of their messages.

        Args:
            options: Further options of Spark's source. Spark's client does not read the configuration. So if the
                connection has encryption or a login, give `kafka.security.protocol` and the options of the login.
        Raises:
            BrokenRanges: There is no range.
            ConfigurationError: The connection has encryption or a login, and `options` has no protocol.
            Errors of `check`.
        """
        found = self.check(
            connection=connection, bootstrap_servers=bootstrap_servers, on_data_loss=on_data_loss
        )
        if not found:
            raise BrokenRanges("there is no range to read", hint="skip the task: raise SkipTask")
        servers = bootstrap_servers or _servers(connection, options or {})
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
        return reader.options(**found.options).options(**(options or {})).load()


def _kafka() -> Any:
    """Return the package `producers.kafka`.

    Raises:
        ConfigurationError: The extra `kafka` is not installed.
    """
    found = entry_points(group="triggerer.producers", name="kafka")
    try:
        return next(iter(found)).load()
    except (StopIteration, ImportError) as error:
        raise ConfigurationError(
            "ranges cannot be checked without the Kafka client",
            hint="pip install 'triggerer[kafka]'",
        ) from error


def _servers(connection: str, options: Mapping[str, Any]) -> str:
    servers, protocol = _kafka().servers_of(connection)
    if protocol != "PLAINTEXT" and "kafka.security.protocol" not in options:
        raise ConfigurationError(
            f"[connections.{connection}] uses {protocol}, and Spark's Kafka client does not read this configuration",
            hint=f'read(..., options={{"kafka.security.protocol": "{protocol}", …}})',
        )
    return str(servers)
