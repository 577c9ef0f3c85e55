"""`triggerer demo --broker NAME`: a small job on a broker other than the demo's own, to try that out.

`trial` publishes orders, runs the service beside them, and counts; `sqs`, `pubsub` and `servicebus` know how to reach
each broker, which may be embedded, an emulator, or one that the user names.
"""
