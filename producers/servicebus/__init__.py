"""Azure Service Bus: queues, subscriptions and sessions.

The producer of a shared stream (`producer`) runs on the main event loop. The stream's SDK client works in a separate
thread (`sdk.thread`), so that locks are renewed while a filter computes. These modules run in that thread:

- `stream` runs the receivers of a shared stream, and accepts sessions.
- `link` receives messages with one receiver.
- `locks` renews the receiver's locks.
- `settle` settles the receiver's messages.
- `in_flight` has the stream's messages that are not settled yet.

Only the package `sdk` uses private parts of the SDK.
"""

from triggerer.pluginkit.installing import needing

with needing("servicebus"):
    from producers.servicebus.checking import check_entity, describe_delivery
    from producers.servicebus.producer import ServiceBusSharedStreamProducer

__all__ = ["ServiceBusSharedStreamProducer", "check_entity", "describe_delivery"]
