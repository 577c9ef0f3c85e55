"""The producer on Google Cloud Pub/Sub subscriptions."""

from triggerer.pluginkit.installing import needing

with needing("pubsub"):
    from producers.pubsub.checking import check_subscription, describe_delivery
    from producers.pubsub.producer import PubSubSharedStreamProducer

__all__ = ["PubSubSharedStreamProducer", "check_subscription", "describe_delivery"]
