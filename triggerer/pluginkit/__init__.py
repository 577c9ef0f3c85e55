"""What producers and watchers of any broker have in common; plugins may import it.

Nothing is imported here: a DAG file that is parsed needs `message_trigger`, and not the settings of connections, which
bring pydantic.

- `message_trigger`: the trigger of a broker in some 60 lines: `match`, `decode`, `extra` and `partition_key`.
- `arguments`: checks of a trigger's arguments, and names that follow from them.
- `matching` (of `extra` and paths, too), `decoding`: what that is made of.
- `connections`: the settings under `[connections.<id>]`, checked before anything connects.
- `guarding`: calls into a client library, with its errors translated.
- `installing`: a client library that is missing is named with what to install.
- `backoff`: growing delays with jitter.
- `delivery`: what an outcome means for a message, and when it is delivered again.
- `reporting`: of the lanes of one call, those that are done before the others.
- `dumping`: a message as bytes, and back.
"""
