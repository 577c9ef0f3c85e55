"""The parts that producers and watchers of all brokers share. Plugins may import them too.

Import the modules directly. This `__init__` imports nothing, because `connections` imports pydantic, which is slow, and
a DAG file needs only `message_trigger`.

- `message_trigger`: the base class of triggers, with the arguments `match`, `decode`, `extra` and `partition_key`.
- `arguments`: checks the arguments of triggers, and makes names from them, such as the default consumer group.
- `matching`: implements `match` and `extra`, with the help of `expressions` and `glob_patterns`.
- `decoding`: implements `decode`, with the help of `cloudevents`, `buckets` and `schemas`.
- `texts`: converts keys and attributes to text that every database can store.
- `connections`: checks the settings under `[connections.<id>]`.
- `guarding`: translates the errors of a client library into errors of this project.
- `installing`: says which extra to install if a client library is missing.
- `backoff`: growing delays with jitter.
- `delivery`: decides whether a message is acknowledged, redelivered or dead-lettered, and when it is redelivered.
- `reporting`: reports finished lanes during a call of `advance_lanes`.
- `dumping`: converts a message to bytes for the store, and back.
"""
