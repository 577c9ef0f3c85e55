"""Azure Service Bus: queues, subscriptions and sessions.

`producer` has the shared stream's producer, on the service's event loop. The SDK works in a thread of its own
(`sdk_thread`), so that locks are renewed while a filter computes: `stream` runs a stream's receivers there, and accepts
sessions; `link` is the owner of one receiver. `sdk` has every call into the SDK, `errors` translates what it raises,
`message` is what a message becomes.
"""

from triggerer.pluginkit.installing import needing

with needing("servicebus"):
    from producers.servicebus.checking import check_entity, describe_delivery
    from producers.servicebus.producer import ServiceBusSharedStreamProducer

__all__ = ["ServiceBusSharedStreamProducer", "check_entity", "describe_delivery"]
