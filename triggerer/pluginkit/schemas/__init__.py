"""Reads values in Confluent's wire format, whose schema is in a registry: Avro, JSON Schema and Protobuf.

Triggers use `decoding`, which looks schemas up in `registry`. For each schema, `avro`, `json_schema` or `protobuf`
makes a reader. These three modules need `triggerer[schema-registry]`. A trigger imports its module at the first
message.
"""
