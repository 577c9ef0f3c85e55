"""Which topics a stream reads: those that are named, or those that a pattern finds."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

from producers.kafka.errors import guarded

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a stream.

    Attributes:
        names: In order; with a pattern, the pattern alone.
        pattern: A regular expression that names match from their beginning; None: the names are names. The topics of
            dead letters are left out.
    """

    names: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, names: Iterable[str], settings: KafkaSettings) -> Topics:
        """Read names, or one pattern, which begins with `^` as in other clients of Kafka.

        Raises:
            ValueError: The pattern is no regular expression, or there are names beside it.
        """
        found = tuple(sorted(set(names)))
        if not any(map(is_pattern, found)):
            return cls(found)
        (pattern,) = found
        left_out = re.escape(settings.dead_letter_topic).replace(r"\{topic\}", ".+")
        return cls(found, re.compile(f"(?!{left_out}\\Z)(?:{pattern})"))

    def __str__(self) -> str:
        return ", ".join(self.names)

    def subscribe(self, consumer: AIOKafkaConsumer, listener: ConsumerRebalanceListener) -> None:
        if self.pattern is None:
            consumer.subscribe(list(self.names), listener=listener)
        else:
            consumer.subscribe(pattern=self.pattern.pattern, listener=listener)

    async def find(self, consumer: AIOKafkaConsumer, what: str) -> Collection[str]:
        """The names of the topics that are there now.

        Raises:
            BrokerUnavailable, BrokerRefused: From the brokers; `what` begins the message.
        """
        if self.pattern is None:
            return self.names
        present: Any = await guarded(consumer.topics(), what)
        return self.matching(present)

    def matching(self, present: Iterable[str]) -> list[str]:
        """Those of them that the pattern matches, in order."""
        assert self.pattern is not None
        return sorted(name for name in present if self.pattern.match(name))


def is_pattern(name: str) -> bool:
    """Whether it stands for all topics that it matches."""
    return name.startswith("^")
