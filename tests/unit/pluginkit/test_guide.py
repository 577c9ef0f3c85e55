"""The trigger of a broker that docs/howto/write-a-plugin.md shows."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from triggerer import abc
from triggerer.abc import BrokerMessage
from triggerer.errors import ConfigurationError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "write-a-plugin.md"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    class ShopProducer:
        def __init__(self, *arguments: Any, **named: Any) -> None:
            self.made_of = (arguments, named)

    module = ModuleType("shop_producer")
    module.ShopProducer = ShopProducer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_producer", module)
    section = PAGE.read_text().partition("## A message broker\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "shop"}
    # Its own annotations are looked up when the settings are first used.
    exec(compile(found[1], "docs/howto/write-a-plugin.md", "exec"), names)
    return names


async def test_the_trigger_of_the_guide_is_whole(
    shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = shown["ShopEventTrigger"]("toys", match={"@shelf": "toys"}, partition_key="day")
    classpath, arguments = trigger.serialize()
    assert classpath == "shop.ShopEventTrigger"
    assert shown["ShopEventTrigger"](**arguments).serialize() == (classpath, arguments)

    async def stream() -> Any:
        yield BrokerMessage(b'{"day": "2026-11-22"}', position={"id": 1, "shelf": "toys"})
        yield BrokerMessage(b"{}", position={"id": 2, "shelf": "books"})

    monkeypatch.setattr(abc, "_resolve_connection", lambda _: {"url": "shop://here"})
    made: Any = shown["ShopEventTrigger"].create_shared_stream_producer(arguments)
    assert made.made_of[0] == ("toys", "earliest")
    assert made.made_of[1]["settings"].url == "shop://here"
    (event,) = [event async for event in trigger.filter_shared_stream(stream())]
    assert event.payload["value"] == {"day": "2026-11-22"}
    assert list(event.payload) == ["value", "id", "shelf", "attributes", "timestamp"]
    assert (event.payload["id"], event.partition_key) == (1, "2026-11-22")


def test_the_settings_of_the_guide_are_checked(shown: dict[str, Any]) -> None:
    settings = shown["ShopSettings"].from_mapping("shop", {"token": "secret"})
    assert settings.delivery_policy().max_deliveries == 10
    assert "secret" not in repr(settings)
    with pytest.raises(ConfigurationError, match=r"'tokn' in \[connections.shop\].*'token'"):
        shown["ShopSettings"].from_mapping("shop", {"tokn": "x"})
