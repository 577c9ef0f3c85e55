"""Values whose schema is in a registry: Avro, JSON Schema and Protobuf, in Confluent's wire format.

`decoding` is what triggers use; `registry` asks the registry; `avro`, `json_schema` and `protobuf` make a reader of a
schema. They need `triggerer[schema-registry]`, and are imported when the first message comes.
"""
