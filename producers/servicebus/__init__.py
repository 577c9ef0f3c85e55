"""Azure Service Bus: queues, subscriptions and sessions.

`producer` has the shared stream's producer, on the main event loop. The SDK works in a separate thread (`sdk.thread`),
so that locks are renewed while a filter computes. In that thread, `stream` runs a stream's receivers and accepts
sessions, and `link` owns one receiver. `locks` has the receiver's locks, and `settle` settles messages.

`sdk` is the only place that uses private parts of the SDK. `errors` translates the SDK's errors, and `message` makes
events from messages.
"""

from triggerer.pluginkit.installing import needing

with needing("servicebus"):
    from producers.servicebus.checking import check_entity, describe_delivery
    from producers.servicebus.producer import ServiceBusSharedStreamProducer

__all__ = ["ServiceBusSharedStreamProducer", "check_entity", "describe_delivery"]
