"""Describes the delivery guarantee of a stream, for `triggerer check` and for watchers that demand a guarantee."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio
from aiokafka import errors as sdk
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import DescribeConfigsRequest

from producers.kafka.connection.topics import Topics
from producers.kafka.errors import guarded
from producers.kafka.missing_topics import find_missing
from producers.kafka.wire.metadata_request import DescribeTopicsRequest
from triggerer.abc import DeliveryFacts, Finding
from triggerer.errors import BrokerError

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

_ASKING_S: Final = 3.0
_CLOSE_TIMEOUT_S: Final = 2.0
_FOR_EVER_MS: Final = timedelta.max // timedelta(milliseconds=1)
_RETENTION: Final = "retention.ms"
_CLEANUP: Final = "cleanup.policy"


async def describe_delivery(
    settings: KafkaSettings,
    topics: Collection[str],
    group: str,
    *,
    ask: bool,
    because: str = "offsets are committed after the events are durable",
) -> DeliveryFacts:
    """Return how messages are delivered, from the settings and, if `ask`, from the brokers.

    If no broker answers within three seconds, the retention and the problems of the topics (`findings`) are unknown.
    For a pattern, the topics that match now are looked up.

    Args:
        because: The reason why no message is lost, for people. For a pattern, the number of matching topics is added.
    """
    facts = _TopicFacts(Topics.parse(topics, settings))
    if ask:
        with anyio.move_on_after(_ASKING_S):
            await facts.look_up(settings)
    limit = settings.max_deliveries
    return DeliveryFacts(
        is_acknowledged=True,
        because=f"{because}{facts.scope}",
        key="the topic's id, partition and offset"
        if facts.has_topic_ids
        else "the topic's name, the message's time, partition and offset",
        retention=facts.retention,
        drops_after=limit or None,
        has_dead_letters=True if limit else None,
        findings=tuple(facts.findings()),
        # Two streams of one group divide the messages of each topic that both streams read. `check` warns about equal
        # sources, so list each topic separately: the streams' other topics may differ.
        source=tuple(
            f"topic {name} in group {group} at {settings.bootstrap_servers}" for name in facts.names
        ),
    )


class _TopicFacts:
    """The brokers' answers about the topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.names: Collection[str] = () if topics.pattern else topics.names
        """The topics that are looked up; with a pattern, the topics that match now."""
        self.scope = ""
        """Says which topics of a pattern were looked up. Empty for listed topics, or if no broker answered."""
        self.has_topic_ids = True
        self.retention: timedelta | None = None
        """The shortest retention of all topics; None: unlimited, or unknown."""
        self._compacted: list[str] = []
        self._no_dead_letters: list[str] = []
        """Dead-letter topics that do not exist and that the brokers will not create."""

    def findings(self) -> Iterator[Finding]:
        if not self.has_topic_ids:
            yield Finding(
                "the brokers have no topic ids: a topic that is deleted and created again is not noticed,"
                " and its messages below the old position are skipped",
                hint="topic ids came with Kafka 2.8",
            )
        if self._compacted:
            yield Finding(
                f"topic {', '.join(self._compacted)} is compacted: a message makes no event if a later message"
                " with its key replaces it first",
                hint="set cleanup.policy=delete on topics that make events",
            )
        if self._no_dead_letters:
            name, *others = self._no_dead_letters
            more = f", nor {len(others)} more," if others else ""
            yield Finding(
                f"there is no topic {name}{more} for dead letters, and the brokers create none:"
                " a message that always fails blocks its partition",
                hint=f"create it: kafka-topics.sh --create --topic {name} --partitions 8 …",
            )

    async def look_up(self, settings: KafkaSettings) -> None:
        """Look the topics up at one of the brokers. Facts that the broker's answers lack stay unknown."""
        what = f"looking at topic {self._topics} at {settings.bootstrap_servers}"
        client: Any = AIOKafkaClient(**settings.client_arguments())
        try:
            await guarded(client.bootstrap(), what)
            await self._find_names(client, what)
            names = list(self.names)
            node = client.get_random_node()
            if node is None or not names:
                return
            try:
                await guarded(client.send(node, DescribeTopicsRequest(names)), what)
            except NotImplementedError:
                # The broker is older than Kafka 2.8, which introduced topic ids and this version of the request.
                self.has_topic_ids = False
            wanted = [
                (int(ConfigResourceType.TOPIC), name, [_RETENTION, _CLEANUP]) for name in names
            ]
            answer = await guarded(client.send(node, DescribeConfigsRequest(wanted)), what)
            for error_code, _, _, name, entries in answer.resources:
                if sdk.for_code(error_code) is sdk.NoError:
                    self._read_configuration(name, {entry[0]: entry[1] for entry in entries})
            if settings.max_deliveries:
                dead_letters = sorted({settings.dead_letter_topic_of(name) for name in names})
                await self._find_dead_letters(client, node, dead_letters, what)
        except (BrokerError, NotImplementedError, sdk.KafkaError) as error:
            logger.debug("%s: %r", what, error)
        finally:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                await client.close()

    async def _find_names(self, client: Any, what: str) -> None:
        if self._topics.pattern is None:
            return
        cluster: Any = await guarded(client.fetch_all_metadata(), what)
        self.names = self._topics.matching(cluster.topics())
        count = len(self.names)
        self.scope = (
            f" (only the {count} topics that match {self._topics} now were looked up;"
            " check again when more are created)"
        )

    async def _find_dead_letters(self, client: Any, node: int, names: list[str], what: str) -> None:

        async def send(request: Any) -> Any:
            return await guarded(client.send(node, request), what)

        self._no_dead_letters = sorted(await find_missing(send, node, names))

    def _read_configuration(self, name: str, configuration: Mapping[str, str | None]) -> None:
        policies = (configuration.get(_CLEANUP) or "").split(",")
        if "compact" in policies:
            self._compacted.append(name)
        kept_ms = int(configuration.get(_RETENTION) or -1)
        # Some people write the largest number that Kafka allows, which is too large for a `timedelta`, instead of -1.
        if "delete" in policies and 0 <= kept_ms < _FOR_EVER_MS:
            kept = timedelta(milliseconds=kept_ms)
            self.retention = kept if self.retention is None else min(self.retention, kept)
