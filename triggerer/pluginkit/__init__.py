"""The parts that producers and watchers of all brokers share; plugins may import them.

Nothing is imported here: parsing a DAG file needs `message_trigger`, and not the settings of connections, which import
    pydantic.

- `message_trigger`: the base class of triggers, with `match`, `decode`, `extra` and `partition_key`. A broker's trigger
  on top of the base class has some 60 lines.
- `arguments`: checks of a trigger's arguments, and names that follow from them.
- `matching` and `decoding`: the parts of that trigger: conditions, paths and `extra`, and the ways to read a value.
- `connections`: the settings under `[connections.<id>]`, checked before anything connects.
- `guarding`: calls into a client library, with its errors translated.
- `installing`: errors about a missing client library say what to install.
- `backoff`: growing delays with jitter.
- `delivery`: the answer to the broker about a message, and the delays of redeliveries.
- `reporting`: reports the lanes that a call has finished, while it still works on other lanes.
- `dumping`: a message as bytes, and back.
"""
