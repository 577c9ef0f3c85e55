"""The parts that producers and watchers of all brokers share. Plugins may import them too.

This `__init__` imports none of the modules. So a DAG file that imports `message_trigger` does not wait for the slow
import of pydantic. Only `connections` needs pydantic.

- `message_trigger`: the base class of triggers, with `match`, `decode`, `extra` and `partition_key`. A broker's trigger
  on top of the base class has about 100 lines.
- `arguments`: checks of a trigger's arguments, and names derived from them, such as the default consumer group.
- `matching`: the base class's conditions, paths and `extra`. It uses `expressions` and `glob_patterns`.
- `decoding`: the base class's ways to read a value. It uses `cloudevents`, `buckets` and `schemas`.
- `texts`: keys and attributes as text that every database can store.
- `connections`: the settings under `[connections.<id>]`, checked before anything connects.
- `guarding`: calls into a client library, whose errors become errors of this project.
- `installing`: the name of the extra to install, in errors about a missing client library.
- `backoff`: growing delays with jitter.
- `delivery`: whether a message is acknowledged, redelivered or dead-lettered, and the delays of redeliveries.
- `reporting`: reports the lanes that a call of `advance_lanes` has finished, while the call works on other lanes.
- `dumping`: a message as bytes for the store, and back.
"""
