"""Values whose schema is in a registry."""

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import fastavro
import psutil
import pytest
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.type.money_pb2 import Money

from tests.services.brokers.schema_registry import Registry, open_registry
from tests.services.process import still_alive
from triggerer import abc
from triggerer.abc import BrokerMessage
from triggerer.errors import BrokerRefused, BrokerUnavailable, ConfigurationError, DagError
from triggerer.pluginkit.schemas.decoding import RegistryDecoder
from watchers.kafka import KafkaEventTrigger

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
VALUE = {
    "id": 7,
    "at": datetime(2026, 11, 22, 6, tzinfo=UTC),
    "price": Decimal("12.50"),
    "raw": b"\xff",
    "tags": ["a"],
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with open_registry() as registry:
        settings = {
            "schema_registry_url": registry.url,
            "schema_registry_username": "me",
            "schema_registry_password": "secret",
        }
        monkeypatch.setattr(abc, "_resolve_connection", lambda _: settings)
        yield registry


@asynccontextmanager
async def decoding(name: str) -> AsyncIterator[RegistryDecoder]:
    decoder = RegistryDecoder(name, "kafka")
    try:
        yield decoder
    finally:
        await decoder.aclose()


async def decode(name: str, *values: bytes | None) -> list[Any]:
    found = []
    async with decoding(name) as decoder:
        for value in values:
            message = BrokerMessage(value)
            await decoder.prepare(message)
            found.append(decoder.read(message))
    return found


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


async def test_avro_becomes_json_and_its_schema_is_looked_up_once(registry: Registry) -> None:
    value = framed(registry.register("AVRO", json.dumps(ORDER)), avro(ORDER, VALUE))
    expected = {
        "id": 7,
        "at": "2026-11-22T06:00:00+00:00",
        "price": "12.50",
        "raw": "/w==",
        "tags": ["a"],
    }
    assert await decode("avro", value, value, None) == [expected, expected, None]
    assert len(registry.asked) == 1
    assert registry.logins == {"Basic " + base64.b64encode(b"me:secret").decode()}


async def test_an_avro_schema_may_refer_to_others(registry: Registry) -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "int"}]}
    line = {"type": "record", "name": "Line", "fields": [{"name": "price", "type": "Money"}]}
    registry.register("AVRO", json.dumps(money), subject="money")
    schema_id = registry.register("AVRO", json.dumps(line), references=(("Money", "money"),))
    data = avro([money, line], {"price": {"cents": 5}})[1:]  # without the union's index
    assert await decode("avro", framed(schema_id, data)) == [{"price": {"cents": 5}}]


async def test_a_json_value_is_checked_against_its_schema(registry: Registry) -> None:
    item = {"$id": "item.json", "type": "object", "required": ["sku"]}
    order = {"type": "object", "properties": {"item": {"$ref": "item.json"}}}
    registry.register("JSON", json.dumps(item), subject="item")
    schema_id = registry.register("JSON", json.dumps(order), references=(("item.json", "item"),))
    value = {"item": {"sku": "x"}}
    assert await decode("jsonschema", framed(schema_id, json.dumps(value).encode())) == [value]
    with pytest.raises(ValueError, match="no value of its JSON Schema: 'sku' is a required"):
        await decode("jsonschema", framed(schema_id, b'{"item": {}}'))
    with pytest.raises(ValueError, match=r"."):
        await decode("jsonschema", framed(schema_id, b"not JSON"))


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    """Two messages, `First`, and `Order` with its nested `Line`s."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    text, number, message = 9, 3, 11
    line.field.add(name="sku", number=1, type=text, label=1)
    order.field.add(name="id", number=1, type=number, label=1)
    order.field.add(
        name="order_lines", number=2, type=message, label=3, type_name=".shop.Order.Line"
    )
    order.field.add(
        name="at", number=3, type=message, label=1, type_name=".google.protobuf.Timestamp"
    )
    return file


def proto_message(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    from google.protobuf import timestamp_pb2

    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(proto_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


async def test_a_protobuf_message_is_read_by_its_files_descriptor(registry: Registry) -> None:
    serialized = base64.b64encode(proto_file().SerializeToString()).decode()
    schema_id = registry.register("PROTOBUF", "syntax…", serialized=serialized)
    order = proto_message("shop.Order")
    order.id = 7
    order.order_lines.add(sku="x")
    order.at.seconds = 1_800_000_000
    line = proto_message("shop.Order.Line")
    line.sku = "y"
    # Before a Protobuf value, the type's place in the file is a list of indices: [1] for `Order`, and [1, 0] for
    # `Line`, which is nested in `Order`. The list's length and the indices are zigzag varints: \x02 is 1, \x04 is 2.
    # A single zero byte means [0], here `First`.
    second, nested, first = b"\x02\x02", b"\x04\x02\x00", b"\x00"
    assert await decode(
        "protobuf",
        framed(schema_id, second + order.SerializeToString()),
        framed(schema_id, nested + line.SerializeToString()),
        framed(schema_id, first),
    ) == [
        {"id": "7", "order_lines": [{"sku": "x"}], "at": "2027-01-15T08:00:00Z"},
        {"sku": "y"},
        {},
    ]
    for wrong in (b"\x02\x08", b"\x80", b"\x02\x02\xff"):
        with pytest.raises(ValueError, match=r"."):
            await decode("protobuf", framed(schema_id, wrong))


def bill_file() -> descriptor_pb2.FileDescriptorProto:
    """Two messages, `Note`, and `Bill` with fields of Google's common types."""
    file = descriptor_pb2.FileDescriptorProto(name="bill.proto", package="shop", syntax="proto3")
    file.dependency.extend(
        ["google/type/money.proto", "google/protobuf/any.proto", "confluent/meta.proto"]
    )
    bill = file.message_type.add(name="Bill")
    bill.field.add(name="total", number=1, type=11, label=1, type_name=".google.type.Money")
    bill.field.add(name="more", number=2, type=11, label=1, type_name=".google.protobuf.Any")
    file.message_type.add(name="Note").field.add(name="text", number=1, type=9, label=1)
    return file


async def test_a_protobuf_file_may_import_what_everybody_has(registry: Registry) -> None:
    """Serializers do not register Google's and Confluent's common types, so the decoder must know these types."""
    serialized = base64.b64encode(bill_file().SerializeToString()).decode()
    made = registry.register("PROTOBUF", "syntax…", serialized=serialized)
    text = (
        'syntax = "proto3"; package shop;\nimport "google/type/money.proto";\n'
        'import "google/protobuf/any.proto";\nimport public "confluent/meta.proto";\n'
        "message Bill { google.type.Money total = 1; google.protobuf.Any more = 2; }\n"
        "message Note { string text = 1; }"
    )
    compiled = registry.register("PROTOBUF", text, subject="text")
    money = Money(currency_code="EUR", units=5).SerializeToString()
    data = b"\0\x0a" + bytes([len(money)]) + money
    expected = [{"total": {"currency_code": "EUR", "units": "5"}}]
    assert await decode("protobuf", framed(made, data)) == expected
    assert await decode("protobuf", framed(compiled, data)) == expected


async def test_a_protobuf_message_may_hold_any_message_of_its_file(registry: Registry) -> None:
    serialized = base64.b64encode(bill_file().SerializeToString()).decode()
    schema_id = registry.register("PROTOBUF", "syntax…", serialized=serialized)

    def bill(type_name: str, data: bytes) -> bytes:
        more = any_pb2.Any(type_url=f"type.googleapis.com/{type_name}", value=data)
        held = more.SerializeToString()
        return framed(schema_id, b"\0\x12" + bytes([len(held)]) + held)

    note, second = bill("shop.Note", b"\x0a\x01x"), bill("google.protobuf.Duration", b"\x08\x01")
    assert [found["more"] for found in await decode("protobuf", note, second)] == [
        {"@type": "type.googleapis.com/shop.Note", "text": "x"},
        {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"},
    ]
    beyond = bill("google.protobuf.Timestamp", b"\x08" + b"\xff" * 8 + b"\x7f")
    for unreadable in (bill("shop.Unknown", b""), beyond):
        with pytest.raises(ValueError, match="no message of its Protobuf schema"):
            await decode("protobuf", unreadable)


async def test_an_avro_time_beyond_the_calendar_is_no_value(registry: Registry) -> None:
    at = {"type": "long", "logicalType": "timestamp-millis"}
    schema_id = registry.register("AVRO", json.dumps(at))
    with pytest.raises(ValueError, match="no value of its Avro schema: OverflowError"):
        await decode("avro", framed(schema_id, avro("long", 2**62)))


async def test_a_json_schema_that_refers_to_what_nobody_has_rejects_its_messages(
    registry: Registry,
) -> None:
    schema_id = registry.register("JSON", '{"properties": {"item": {"$ref": "missing.json"}}}')
    with pytest.raises(ValueError, match=r"no JSON Schema: it refers to 'missing\.json'"):
        await decode("jsonschema", framed(schema_id, b'{"item": 1}'))


async def test_a_pattern_that_python_cannot_compile_rejects_the_messages_that_need_it(
    registry: Registry,
) -> None:
    """The pattern is for Java, and the registry accepts it. `\\p{L}` means a letter."""
    letters = r"^\p{L}+$"
    registry.register("JSON", json.dumps({"type": "string", "pattern": letters}))
    referring = registry.register(
        "JSON",
        json.dumps({"properties": {"name": {"$ref": "name.json"}}}),
        subject="referring",
        references=(("name.json", "values"),),
    )
    draft_04 = registry.register(
        "JSON",
        json.dumps(
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "patternProperties": {letters: {}},
            }
        ),
        subject="draft-04",
    )
    said = re.escape(f"no JSON Schema: Python cannot compile its pattern {letters!r}: bad escape")
    for schema_id in (referring, draft_04):
        with pytest.raises(ValueError, match=said):
            await decode("jsonschema", framed(schema_id, b'{"name": "x"}'))
        assert await decode("jsonschema", framed(schema_id, b"{}")) == [{}]


async def test_a_protobuf_schema_that_the_registry_has_as_text_only_is_compiled(
    registry: Registry,
) -> None:
    registry.register("PROTOBUF", 'syntax = "proto3"; message Money { int64 cents = 1; }')
    text = 'syntax = "proto3"; import "a/money.proto"; message Bill { Money total = 1; }'
    schema_id = registry.register(
        "PROTOBUF", text, subject="bill", references=(("a/money.proto", "values"),)
    )
    assert await decode("protobuf", framed(schema_id, b"\0\x0a\x02\x08\x05")) == [
        {"total": {"cents": "5"}}
    ]


@pytest.mark.parametrize("name", ["../money.proto", "/tmp/money.proto", ""])
async def test_a_protobuf_file_whose_name_leads_elsewhere_is_refused(
    registry: Registry, name: str
) -> None:
    registry.register("PROTOBUF", 'syntax = "proto3";')
    schema_id = registry.register(
        "PROTOBUF", 'syntax = "proto3";', subject="bill", references=((name, "values"),)
    )
    with pytest.raises(ValueError, match="which is not a valid file name"):
        await decode("protobuf", framed(schema_id, b"\0"))


async def test_a_protobuf_schema_that_does_not_compile_rejects_its_messages(
    registry: Registry,
) -> None:
    schema_id = registry.register("PROTOBUF", 'syntax = "proto3";\nmessage {')
    with pytest.raises(ValueError, match=r"does not compile: schema-100.proto:2:9: Expected"):
        await decode("protobuf", framed(schema_id, b"\0"))


@pytest.mark.parametrize(
    ("code", "said"), [(-9, ""), (1, ".made: write error: No space left on device")]
)
async def test_a_compiler_that_could_not_do_its_work_rejects_no_message(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    schema_id = registry.register("PROTOBUF", 'syntax = "proto3"; message First {}')

    async def end(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess((), code, b"", said.encode())

    with monkeypatch.context() as killed:
        killed.setattr(anyio, "run_process", end)
        with pytest.raises(OSError, match=f"the Protobuf compiler ended with {code}"):
            await decode("protobuf", framed(schema_id, b"\0"))
    assert await decode("protobuf", framed(schema_id, b"\0")) == [{}]


async def test_a_compiler_that_hangs_does_not_delay_a_stop(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    schema_id = registry.register("PROTOBUF", 'syntax = "proto3"; message First {}')
    compiler, started = tmp_path / "compiler", tmp_path / "started"
    compiler.write_text(
        f"#!/bin/sh\necho $$ > {started}.new; mv {started}.new {started}\nexec sleep 60\n"
    )
    compiler.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(compiler))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decode, "protobuf", framed(schema_id, b"\0"))
            while not started.exists():  # noqa: ASYNC110  (a process of another program)
                await anyio.sleep(0.01)
            hanging = psutil.Process(int(started.read_text()))
            tasks.cancel_scope.cancel()
    assert still_alive([hanging], within_s=5) == []


async def test_without_the_compiler_the_message_says_what_to_install(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema_id = registry.register("PROTOBUF", 'syntax = "proto3"; message First {}')
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="its compiler is not installed"):
        await decode("protobuf", framed(schema_id, b"\0"))


@pytest.mark.parametrize("value", [b"", b"\0\0\0", b"{}", b"\x01\0\0\0\x64rest"])
async def test_a_value_that_names_no_schema_is_refused_without_asking(
    registry: Registry, value: bytes
) -> None:
    with pytest.raises(ValueError, match="does not begin with the id of a schema"):
        await decode("avro", value)
    assert registry.asked == []


async def test_a_value_of_another_kind_or_that_does_not_fit_is_refused(registry: Registry) -> None:
    schema_id = registry.register("AVRO", json.dumps(ORDER))
    with pytest.raises(ValueError, match="is of kind AVRO"):
        await decode("jsonschema", framed(schema_id, b"{}"))
    for data in (b"", avro(ORDER, VALUE)[:-1], avro(ORDER, VALUE) + b"x"):
        with pytest.raises(ValueError, match="no value of its Avro schema"):
            await decode("avro", framed(schema_id, data))
    broken = registry.register("AVRO", '{"type": "unheard-of"}')
    with pytest.raises(ValueError, match="no Avro schema"):
        await decode("avro", framed(broken, b""))


async def test_a_schema_that_is_not_known_yet_fails_the_message_and_may_be_known_later(
    registry: Registry,
) -> None:
    async with decoding("avro") as decoder:
        message = BrokerMessage(framed(100, avro("long", 3)))
        with pytest.raises(BrokerRefused, match="look-up of schema 100 in the schema registry"):
            await decoder.prepare(message)
        assert registry.register("AVRO", '"long"') == 100
        await decoder.prepare(message)
        assert decoder.read(message) == 3


async def test_a_registry_that_refuses_or_is_away_is_told_apart(registry: Registry) -> None:
    value = framed(registry.register("AVRO", '"long"'), avro("long", 3))
    registry.status = 401
    with pytest.raises(BrokerRefused, match="check schema_registry_username") as refused:
        await decode("avro", value)
    assert "secret" not in str(refused.value)
    registry.server.shutdown()
    registry.server.server_close()
    with pytest.raises(BrokerUnavailable, match=registry.url):
        await decode("avro", value)


@pytest.mark.parametrize("page", ["<html>Welcome</html>", "[]", "{}", '"schema"', '{"schema": 3}'])
@pytest.mark.parametrize("kind", ["avro", "jsonschema", "protobuf"])
async def test_an_answer_that_is_no_registrys_fails_the_message_and_does_not_pass_it(
    registry: Registry, kind: str, page: str
) -> None:
    """A filter rejects a message at a `ValueError`, so the error must be of another class.

    In an earlier version, filters rejected all messages when the registry's URL led to a web page.
    """
    registry.page = page
    with pytest.raises(BrokerRefused, match="the schema registry http://127") as error:
        await decode(kind, framed(1, b"x"))
    assert "schema_registry_url name a registry" in str(error.value)


@pytest.mark.parametrize(
    "url", ["localhost:8081", "nope", "ftp://x", "http://[", "http://host:port", 5]
)
async def test_what_is_no_url_of_a_registry_fails_the_message_and_does_not_pass_it(
    monkeypatch: pytest.MonkeyPatch, url: Any
) -> None:
    monkeypatch.setattr(abc, "_resolve_connection", lambda _: {"schema_registry_url": url})
    with pytest.raises(ConfigurationError, match=r"schema registry of .connections.kafka. cannot"):
        await decode("avro", framed(1, b""))


async def test_a_connection_without_a_registry_says_which_key_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abc, "_resolve_connection", lambda _: {})
    with pytest.raises(ConfigurationError, match=r"schema_registry_url is missing in \[conn"):
        await decode("avro", framed(1, b""))


async def test_a_watcher_matches_on_such_values_and_rejects_what_it_cannot_read(
    registry: Registry,
) -> None:
    trigger = KafkaEventTrigger("orders", decode="avro", match={"id": 7}, extra={"id": "id"})
    assert trigger.shared_stream_selector() is None
    schema_id = registry.register("AVRO", json.dumps(ORDER))
    values = [framed(schema_id, avro(ORDER, VALUE | {"id": number})) for number in (6, 7)]

    async def stream() -> AsyncIterator[BrokerMessage]:
        for value in (b"no schema", *values):
            yield BrokerMessage(value)

    async with aclosing(trigger.filter_shared_stream(stream())) as events:
        with pytest.warns(RuntimeWarning, match="reject_shared_stream_event"):
            assert [event.payload async for event in events] == [{"id": 7}]
    await trigger.cleanup()
    with pytest.raises(DagError, match='"avro", "jsonschema", "protobuf" or None'):
        KafkaEventTrigger("orders", decode="xml")
