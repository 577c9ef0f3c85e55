"""The entity that a stream reads: a queue, or a subscription of a topic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EntityPath:
    """The name of a queue, or the names of a topic and of one of its subscriptions."""

    name: str
    subscription: str | None = None

    def __str__(self) -> str:
        """The entity as it is written in events and keys: `orders`, `orders/billing`."""
        return self.name if self.subscription is None else f"{self.name}/{self.subscription}"

    @property
    def is_dead_letter_queue(self) -> bool:
        """True if the entity is the dead-letter queue of another entity, and so has no dead-letter queue itself."""
        return str(self).lower().endswith("/$deadletterqueue")

    @property
    def described(self) -> str:
        """The entity's name for log lines and errors: "queue 'orders'"."""
        if self.subscription is None:
            return f"queue {self.name!r}"
        return f"subscription {self.subscription!r} of topic {self.name!r}"

    @property
    def how_to_create(self) -> str:
        if self.subscription is None:
            return f"az servicebus queue create --namespace-name NAMESPACE -g GROUP -n {self.name}"
        return (
            "az servicebus topic subscription create --namespace-name NAMESPACE -g GROUP"
            f" --topic-name {self.name} -n {self.subscription}"
        )
