"""The forms that `dags test --event` accepts."""

import pytest

from triggerer.cli.dags.trial import _parse_event
from triggerer.operations.trial import TrialEvent


@pytest.mark.parametrize(
    ("given", "event"),
    [
        ("orders", TrialEvent("orders", {})),
        ('orders={"n": 1}', TrialEvent("orders", {"n": 1})),
        ("orders=[1]", TrialEvent("orders", {"payload": [1]})),
        ('x-a://b?c=d={"e": "f=1"}', TrialEvent("x-a://b?c=d", {"e": "f=1"})),
        ("x-a://b?c=d", TrialEvent("x-a://b?c=d", {})),
    ],
)
def test_an_event_is_an_asset_and_maybe_json(given: str, event: TrialEvent) -> None:
    assert _parse_event(given) == event
