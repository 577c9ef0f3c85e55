"""`triggerer demo --broker NAME`: a small job that tries out a broker other than Kafka.

`trial` publishes a shop's orders, runs the service, and compares the numbers of messages, events and runs. `sqs`,
`pubsub` and `servicebus` connect to an embedded broker, to an emulator, or to a broker that the user names.
"""
