"""The topics that a stream reads: a list of names, or a pattern."""

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
        names: The names of the topics, sorted. With a pattern: the pattern's text, and nothing else.
        pattern: A regular expression, matched from the beginning of a name. It matches no dead-letter topic. None: the
            topics are listed in `names`.
    """

    names: tuple[str, ...]
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, names: Iterable[str], settings: KafkaSettings) -> Topics:
        """Read names, or one pattern, which begins with `^` as in other clients of Kafka.

        Raises:
            ValueError: A pattern is not the only name.
            re.error: The pattern is no regular expression.
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
        """Return the listed topics, even if they do not exist; with a pattern, the existing topics that match it.

        Raises:
            BrokerUnavailable, BrokerRefused: From the brokers. The error's text begins with `what`.
        """
        if self.pattern is None:
            return self.names
        present: Any = await guarded(consumer.topics(), what)
        return self.matching(present)

    def matching(self, present: Iterable[str]) -> list[str]:
        """Return the topics that the pattern matches, in order."""
        assert self.pattern is not None
        return sorted(name for name in present if self.pattern.match(name))


def is_pattern(name: str) -> bool:
    """Whether the name is a pattern."""
    return name.startswith("^")
