"""Kafka's protocol beyond aiokafka's public methods: the only place that touches aiokafka's private parts."""
