"""Connecting to a Kafka cluster: consumers, OAuth access tokens, topics, and a check that joins no group."""
