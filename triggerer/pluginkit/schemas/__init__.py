"""Reads values with a schema in a registry: Avro, JSON Schema and Protobuf, in Confluent's wire format.

Triggers use `decoding`, which looks schemas up in `registry`. For each schema, `avro`, `json_schema` or `protobuf`
makes a reader. These three modules need `triggerer[schema-registry]`, and are imported at the first message.
"""
