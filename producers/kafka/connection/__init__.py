"""Connecting to a Kafka cluster: consumers, tokens, topics, and the check that needs no group."""
