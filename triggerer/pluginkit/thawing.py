"""How a producer with a message class of its own, a subclass of `BrokerMessage`, sets messages up: they are frozen."""

from triggerer.broker_message import become, thawed

__all__ = ["become", "thawed"]
