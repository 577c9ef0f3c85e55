from datetime import UTC, datetime
from typing import Any

import pytest

from triggerer.errors import RowRefused
from triggerer.store.events.encoding import encode_extra

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({1: "a", "1": "b"}, "1"),
        ({"rows": [{None: "a", "null": "b"}]}, "null"),
        ([{DAY: "a", DAY.isoformat(): "b"}], "2026-01-01T00:00:00+00:00"),
    ],
)
def test_a_payload_with_two_keys_that_are_equal_in_json_is_refused(payload: Any, key: str) -> None:
    with pytest.raises(RowRefused, match="two keys") as refused:
        encode_extra(payload, max_bytes=1_000)
    assert f"'{key}'" in str(refused.value)


def test_keys_that_are_not_strings_become_strings() -> None:
    payload = {1: {1: "a", 2: "b"}, "2": [{1: None}], DAY: 0.1}
    assert encode_extra(payload, max_bytes=1_000) == (
        '{"1":{"1":"a","2":"b"},"2":[{"1":null}],"2026-01-01T00:00:00+00:00":0.1}'
    )
