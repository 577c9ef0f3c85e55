"""`triggerer demo --broker NAME`: a small job that tries out a broker other than Kafka.

`trial` publishes orders, runs the service, and counts. `sqs`, `pubsub` and `servicebus` connect to their broker, which
may be embedded, an emulator, or a broker that the user names.
"""
