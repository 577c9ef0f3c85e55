"""Values that Confluent's own serializers wrote, with their schemas in Apicurio's registry."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.services.availability import service
from tests.services.brokers.apicurio import ApicurioServer, open_apicurio
from triggerer import abc
from triggerer.abc import BrokerMessage
from triggerer.errors import BrokerUnavailable
from triggerer.pluginkit.schemas.decoding import RegistryDecoder
from watchers.kafka import KafkaEventTrigger

pytestmark = [pytest.mark.services]

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
}
ORDER_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
}
MONEY_PROTO = 'syntax = "proto3";\npackage shop.money;\nmessage Money { int64 cents = 1; }\n'
ORDER_PROTO = """\
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/money.proto";
message First { string note = 1; }
message Order {
  message Line { string sku = 1; }
  int64 id = 1;
  repeated Line lines = 2;
  google.protobuf.Timestamp at = 3;
  money.Money total = 4;
}
"""


@pytest.fixture(scope="module")
def apicurio() -> Iterator[ApicurioServer]:
    with service(open_apicurio()) as server:
        yield server


@pytest.fixture
def client(
    apicurio: ApicurioServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SchemaRegistryClient]:
    connections = {"kafka": {"schema_registry_url": apicurio.url}}
    # The decoder finds its connection here, because no configuration is loaded.
    monkeypatch.setattr(abc, "_resolve_connection", connections.__getitem__)
    with SchemaRegistryClient({"url": apicurio.url, "timeout": 20}) as client:
        yield client


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A publisher's module, compiled from `ORDER_PROTO`."""
    from grpc_tools import protoc

    folder = tmp_path_factory.mktemp("proto")
    (folder / "shop").mkdir()
    (folder / "shop" / "money.proto").write_text(MONEY_PROTO)
    (folder / "shop" / "order.proto").write_text(ORDER_PROTO)
    known = Path(protoc.__file__).with_name("_proto")
    arguments = [f"-I{folder}", f"-I{known}", f"--python_out={folder}"]
    assert protoc.main(["protoc", *arguments, "shop/money.proto", "shop/order.proto"]) == 0
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("shop.order_pb2")
    finally:
        sys.path.remove(str(folder))


async def read(decode: str, *values: bytes) -> list[Any]:
    """Return the values in the events that a watcher makes from these messages."""

    async def stream() -> AsyncIterator[BrokerMessage]:
        for value in values:
            yield BrokerMessage(value)

    trigger = KafkaEventTrigger("orders", decode=decode, extra={"value": "@value"})
    async with aclosing(trigger.filter_shared_stream(stream())) as events:
        found = [event.payload["value"] async for event in events]
    await trigger.cleanup()
    return found


def field(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


async def test_avro_that_confluents_client_wrote_is_read(client: SchemaRegistryClient) -> None:
    value = {"id": 7, "note": "ä"}
    written = AvroSerializer(client, json.dumps(ORDER))(value, field("avro"))
    assert await read("avro", written) == [value]


async def test_a_value_of_an_older_avro_schema_is_read_by_its_own(
    client: SchemaRegistryClient,
) -> None:
    older = AvroSerializer(client, json.dumps(ORDER))({"id": 7, "note": ""}, field("evolving"))
    newer = ORDER | {
        "fields": [*ORDER["fields"], {"name": "sku", "type": "string", "default": "?"}]  # type: ignore[misc]
    }
    value = {"id": 8, "note": "", "sku": "a"}
    written = AvroSerializer(client, json.dumps(newer))(value, field("evolving"))
    assert await read("avro", older, written) == [{"id": 7, "note": ""}, value]


async def test_json_that_confluents_client_wrote_is_read_and_checked(
    client: SchemaRegistryClient,
) -> None:
    serialize = JSONSerializer(json.dumps(ORDER_SCHEMA), client, lambda value, _: value)
    written = serialize({"id": 7}, field("json"))
    assert await read("jsonschema", written) == [{"id": 7}]
    decoder = RegistryDecoder("jsonschema", "kafka")
    wrong = BrokerMessage(written[:5] + b'{"id": "seven"}')
    await decoder.prepare(wrong)
    with pytest.raises(ValueError, match="no value of its JSON Schema"):
        decoder.read(wrong)
    await decoder.aclose()


async def test_protobuf_that_confluents_client_wrote_is_read(
    client: SchemaRegistryClient, shop: ModuleType
) -> None:
    order = shop.Order(id=7, lines=[shop.Order.Line(sku="a")])
    order.at.seconds, order.total.cents = 1_800_000_000, 5
    serialize: Callable[..., bytes] = ProtobufSerializer(
        shop.Order, client, {"use.deprecated.format": False}
    )
    assert await read("protobuf", serialize(order, field("protobuf"))) == [
        {
            "id": "7",
            "lines": [{"sku": "a"}],
            "at": "2027-01-15T08:00:00Z",
            "total": {"cents": "5"},
        }
    ]


async def test_protobuf_whose_schema_was_registered_as_text_is_read(
    client: SchemaRegistryClient, shop: ModuleType
) -> None:
    # Register another schema first, because an empty registry of Apicurio 3.3 does not return a schema that has a
    # reference.
    serialize: Callable[..., bytes] = ProtobufSerializer(
        shop.Order, client, {"use.deprecated.format": False}
    )
    serialize(shop.Order(id=1), field("protobuf"))
    client.register_schema("shop/money.proto", Schema(MONEY_PROTO, "PROTOBUF"))
    reference = SchemaReference("shop/money.proto", "shop/money.proto", 1)
    schema_id = client.register_schema("text-value", Schema(ORDER_PROTO, "PROTOBUF", [reference]))
    order, line = shop.Order(id=7), shop.Order.Line(sku="b")
    order.total.cents = 5
    # The first bytes of a value name its type: message 1 of the file, and for the second value message 0 within message
    # 1.
    assert await read(
        "protobuf",
        framed(schema_id, b"\x02\x02" + order.SerializeToString()),
        framed(schema_id, b"\x04\x02\x00" + line.SerializeToString()),
    ) == [{"id": "7", "total": {"cents": "5"}}, {"sku": "b"}]


async def test_a_registry_that_is_away_fails_the_message_until_it_is_back(
    apicurio: ApicurioServer, client: SchemaRegistryClient
) -> None:
    written = AvroSerializer(client, json.dumps(ORDER))({"id": 7, "note": ""}, field("away"))
    decoder = RegistryDecoder("avro", "kafka")
    message = BrokerMessage(written)
    await anyio.to_thread.run_sync(apicurio.daemon.kill)
    with pytest.raises(BrokerUnavailable, match="in the schema registry http"):
        await decoder.prepare(message)
    await decoder.aclose()
