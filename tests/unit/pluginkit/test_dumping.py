"""A message as bytes, and back."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.abc import BrokerMessage
from triggerer.pluginkit.dumping import dump_message, get_size, load_message

CONTENT = st.none() | st.binary(max_size=40)
MESSAGES = st.builds(
    BrokerMessage,
    CONTENT,
    CONTENT,
    st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.binary(max_size=8), max_size=3),
    st.dictionaries(
        st.sampled_from(["queue", "offset"]), st.text(max_size=5) | st.integers(0, 2**62)
    ),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.none() | st.integers(0, 100),
)


@given(MESSAGES)
def test_a_message_is_loaded_as_it_was_dumped(message: BrokerMessage) -> None:
    loaded = load_message(dump_message(message))
    assert loaded == message
    assert get_size(loaded) == get_size(message)


def test_half_a_character_and_a_large_number_can_be_kept() -> None:
    message = BrokerMessage(b"v", None, {"\ud83d": "caf\xe9 \udc00"}, {"offset": 2**64})
    assert load_message(dump_message(message)) == message


@given(MESSAGES, st.integers(1, 20))
def test_bytes_that_are_cut_off_are_refused(message: BrokerMessage, cut: int) -> None:
    with pytest.raises(ValueError, match="no dump of a message"):
        load_message(dump_message(message)[:-cut])


@pytest.mark.parametrize("data", [b"", b"{}\n", b"[]\n", b'{"v": 2}\n', b"\0"])
def test_what_is_no_dump_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no dump of a message"):
        load_message(data)


def test_the_size_counts_value_key_and_attributes() -> None:
    message = BrokerMessage(b"12345", b"12", {"name": "val", "raw": b"\0"})
    assert get_size(message) == 5 + 2 + 7 + 4
    assert get_size(BrokerMessage(None, published_at=datetime.now(UTC))) == 0
