"""The producer that reads subscriptions of Google Cloud Pub/Sub."""

from triggerer.pluginkit.installing import needing

with needing("pubsub"):
    from producers.pubsub.checking import check_subscription, describe_delivery
    from producers.pubsub.producer import PubSubSharedStreamProducer

__all__ = ["PubSubSharedStreamProducer", "check_subscription", "describe_delivery"]
