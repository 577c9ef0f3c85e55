"""The common base class of all brokers' triggers, and their message."""

import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from triggerer.abc import BrokerMessage, TriggerEvent
from triggerer.errors import DagError, PluginError
from triggerer.pluginkit import message_trigger
from triggerer.pluginkit.decoding import Decoding
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    attributes,
    deliveries,
    in_position,
    texts_of,
    timestamp_ms,
)


class ShopTrigger(MessageTrigger):
    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        "id": lambda message: message.position["id"],
        "attributes": lambda message: texts_of(message.attributes),
    }

    def __init__(self, shop: str, *, connection: str = "shop", **arguments: Any) -> None:
        self.shop = shop
        super().__init__(connection=connection, **arguments)

    def default_extra(self, message: BrokerMessage, value: Any) -> dict[str, Any]:
        return {"value": value, **message.position}


def order(value: bytes | None, **position: Any) -> BrokerMessage:
    return BrokerMessage(value, position=position or {"id": 1}, attributes={"raw": b"\xff"})


async def events(trigger: MessageTrigger, *messages: BrokerMessage) -> list[TriggerEvent]:
    async def stream() -> Any:
        for message in messages:
            yield message

    return [event async for event in trigger.filter_shared_stream(stream())]


async def test_a_match_becomes_an_event_with_the_brokers_fields() -> None:
    trigger = ShopTrigger("s", match={"n": {"gt": 1}})
    assert await events(trigger, order(b'{"n": 1}'), order(b'{"n": 2}', id=7)) == [
        TriggerEvent({"value": {"n": 2}, "id": 7})
    ]


async def test_extra_and_partition_key_are_paths_into_the_value_or_the_message() -> None:
    trigger = ShopTrigger("s", extra={"raw": "@attributes.raw", "n": "n"}, partition_key="day")
    assert await events(trigger, order(b'{"n": 1, "day": "2026-11-22"}')) == [
        TriggerEvent({"raw": "base64:/w==", "n": 1}, partition_key="2026-11-22")
    ]


@pytest.mark.parametrize(
    ("value", "key"),
    [(b'{"k": 7}', "7"), (b'{"k": null}', None), (b'{"k": true}', None), (b"{}", None)],
)
async def test_a_partition_key_is_text_or_a_number_or_none(value: bytes, key: str | None) -> None:
    (event,) = await events(ShopTrigger("s", partition_key="k"), order(value))
    assert event.partition_key == key


def test_the_arguments_make_an_equal_trigger_and_name_no_partition_key_without_need() -> None:
    trigger = ShopTrigger("s", match={"a": 1}, decode="text", extra={"v": "@value"})
    classpath, arguments = trigger.serialize()
    assert classpath.endswith("ShopTrigger")
    assert "partition_key" not in arguments
    assert ShopTrigger(**arguments).serialize() == trigger.serialize()
    assert ShopTrigger("s", partition_key="k").serialize()[1]["partition_key"] == "k"


class BookTrigger(ShopTrigger):
    """A subclass as users write it: it has one argument, and passes all others on."""

    def __init__(self, *arguments: Any, author: str = "any", **named: Any) -> None:
        self.author = author
        super().__init__(*arguments, **named)


def test_the_arguments_of_the_source_are_found_by_their_names() -> None:
    assert ShopTrigger("s").source_arguments() == {"shop": "s"}
    trigger = BookTrigger("s", author="Homer", match={"a": 1})
    assert trigger.source_arguments() == {"author": "Homer", "shop": "s"}
    _, arguments = trigger.serialize()
    assert BookTrigger(**arguments).serialize() == trigger.serialize()


class ForgetfulTrigger(ShopTrigger):
    """It does not store its argument under the argument's name."""

    def __init__(self, shop: str, *, author: str = "any", **arguments: Any) -> None:
        self._author = author.lower()
        super().__init__(shop, **arguments)


def test_an_argument_that_is_not_kept_is_named() -> None:
    with pytest.raises(
        PluginError, match="ForgetfulTrigger does not store the argument `author`"
    ) as caught:
        ForgetfulTrigger("s").serialize()
    assert caught.value.hint == "set `self.author` there, or implement source_arguments()"


class PlainTrigger(MessageTrigger):
    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        **in_position("id", "shelf"),
        "attributes": attributes,
        "deliveries": deliveries,
    }

    def __init__(self, **arguments: Any) -> None:
        super().__init__(connection="shop", **arguments)


async def test_an_event_has_the_value_and_all_attributes_where_nothing_else_is_said() -> None:
    message = BrokerMessage(b"1", position={"id": 7}, attributes={"a": "b"}, deliveries=2)
    (event,) = await events(PlainTrigger(), message)
    assert event.payload == {
        "value": 1, "id": 7, "shelf": None, "attributes": {"a": "b"}, "deliveries": 2,
    }  # fmt: skip
    with pytest.raises(NotImplementedError, match="PlainTrigger makes no producer"):
        PlainTrigger.create_shared_stream_producer({})


def test_wrong_arguments_are_refused_when_the_trigger_is_made() -> None:
    for arguments, message in (
        ({"decode": "yaml"}, 'decode must be "json", "text"'),
        ({"decode": []}, "decode must be"),
        ({"match": {"@topic": "x"}}, "messages have no '@topic'"),
        ({"connection": ""}, "connection must be a non-empty text"),
        ({"partition_key": 3}, "a path must be a non-empty text"),
    ):
        with pytest.raises(DagError, match=message):
            ShopTrigger("s", **arguments)


async def test_several_objects_of_one_message_are_matched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = Decoding(
        "lines",
        lambda message: [{"line": line} for line in (message.value or b"").decode().split()],
        several=True,
        fields=("line",),
    )
    monkeypatch.setattr(message_trigger, "find_decoding", lambda _, **__: lines)
    trigger = ShopTrigger("s", decode="lines", match={"line": ["a", "c"]})
    assert await events(trigger, order(b"a b c")) == [
        TriggerEvent({"line": "a"}),
        TriggerEvent({"line": "c"}),
    ]
    assert trigger.shared_stream_selector() is None


def test_a_message_is_decoded_once_for_all_who_ask_and_again_in_another_process() -> None:
    message = order(b'{"n": 1}')
    assert message.json() is message.json()
    there = pickle.loads(pickle.dumps(message))
    assert there == message
    assert there.json() == {"n": 1}
    assert there.json() is not message.json()


def test_json_may_begin_with_the_mark_of_its_byte_order() -> None:
    """.NET's writers begin JSON with this mark."""
    assert order(b'\xef\xbb\xbf{"n": 1}').json() == {"n": 1}
    for wrong in (b"\xef\xbb\xbf", b"\xef\xbb\xbf{", b"\xef\xbb{}"):
        with pytest.raises(ValueError, match=r"."):
            order(wrong).json()


def test_a_message_without_a_time_has_no_timestamp() -> None:
    assert timestamp_ms(order(None)) is None
    assert order(None).json() is None
