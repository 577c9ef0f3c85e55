"""The forms that `dags test --event` accepts."""

import pytest

from triggerer.cli.dags.trial import _parse_event
from triggerer.operations.trial import GivenEvent


@pytest.mark.parametrize(
    ("given", "event"),
    [
        ("orders", GivenEvent("orders", {})),
        ('orders={"n": 1}', GivenEvent("orders", {"n": 1})),
        ("orders=[1]", GivenEvent("orders", {"payload": [1]})),
        ('x-a://b?c=d={"e": "f=1"}', GivenEvent("x-a://b?c=d", {"e": "f=1"})),
        ("x-a://b?c=d", GivenEvent("x-a://b?c=d", {})),
    ],
)
def test_an_event_is_an_asset_and_maybe_json(given: str, event: GivenEvent) -> None:
    assert _parse_event(given) == event
