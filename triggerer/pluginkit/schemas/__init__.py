"""Reads values with a schema in a registry: Avro, JSON Schema and Protobuf, in Confluent's wire format.

Triggers use `decoding`, which looks schemas up in `registry`. `avro`, `json_schema` and `protobuf` make readers from
schemas. These three need `triggerer[schema-registry]`, and are imported when the first message comes.
"""
