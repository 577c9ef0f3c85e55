"""The parts that producers and watchers of all brokers share; plugins may import them.

Nothing is imported here: parsing a DAG file needs `message_trigger`, and not the settings of connections, which import
    pydantic.

- `message_trigger`: the trigger of a broker in some 60 lines: `match`, `decode`, `extra` and `partition_key`.
- `arguments`: checks of a trigger's arguments, and names that follow from them.
- `matching` (also of `extra` and paths) and `decoding`: the parts of that trigger.
- `connections`: the settings under `[connections.<id>]`, checked before anything connects.
- `guarding`: calls into a client library, with its errors translated.
- `installing`: errors about a missing client library say what to install.
- `backoff`: growing delays with jitter.
- `delivery`: the judgement of an outcome, and the delays of redeliveries.
- `reporting`: reports lanes that finish before the others of a call.
- `dumping`: a message as bytes, and back.
"""
