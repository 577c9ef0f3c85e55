from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.errors import PluginError
from triggerer.plugins import canonical_kwargs, stream_digest, trigger_digest


class Colour(Enum):
    RED = 1


class Word(StrEnum):
    A = "a"


class Pair(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Key:
    host: str
    port: float


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.fractions(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from([0, 1, -1, 2, 0.5, "1", b"1", Colour.RED, Word.A, "a"]),
)
keys: st.SearchStrategy[Hashable] = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.full
@given(keys, keys)
def test_two_keys_have_one_digest_if_and_only_if_they_are_equal(one: Any, other: Any) -> None:
    assert (stream_digest(one) == stream_digest(other)) == (one == other)


@pytest.mark.rule("1: keys that compare equal count as one key")
@pytest.mark.parametrize(
    "equal",
    [
        (1, 1.0, True, Decimal(1), Fraction(1), 1 + 0j),
        (0.5, Decimal("0.5"), Fraction(1, 2)),
        (float("inf"), Decimal("Infinity")),
        ("a", Word.A),
        ((1, 2), Pair(1, 2), (1.0, True + 1)),
        (frozenset({"a", "b"}), frozenset({"b", Word.A})),
        (Key("h", 1), Key("h", 1.0)),
        (NOON, NOON.astimezone(timezone(timedelta(hours=5)))),
    ],
)
def test_equal_keys_of_several_types_have_one_digest(equal: tuple[Any, ...]) -> None:
    assert len(set(equal)) == 1
    assert len({stream_digest(key) for key in equal}) == 1


@pytest.mark.parametrize(
    "different",
    [
        (1, "1", b"1", (1,), frozenset({1}), None, Colour.RED, Colour),
        (("a", "b"), ("ab",), (("a",), "b"), "ab"),
        (Key("h", 1), ("h", 1), Key("i", 1)),
        (UUID(int=1), UUID(int=2), Path("a"), "a"),
    ],
)
def test_different_keys_have_different_digests(different: tuple[Any, ...]) -> None:
    assert len({stream_digest(key) for key in different}) == len(different)


def test_a_digest_is_the_same_in_every_process() -> None:
    key = "('kafka', frozenset({'a', 'b', 'c', 'flights', 'weather'}), 1.0, None, b'x')"
    code = f"from triggerer.plugins import stream_digest; print(stream_digest({key}))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert seen == {stream_digest(eval(key))}


def test_a_key_that_only_an_address_describes_is_refused() -> None:
    with pytest.raises(PluginError, match="looks different in every process"):
        stream_digest(("kafka", object()))


@pytest.mark.rule(
    "15: a trigger is identified by its class and its canonical arguments",
    "a trigger that serialises differently each time is deleted and made again at every parse",
)
def test_arguments_have_one_canonical_text() -> None:
    assert canonical_kwargs({"b": (1, 2), "a": None}) == '{"a":null,"b":[1,2]}'
    assert trigger_digest("m.T", {"a": 1, "b": 2}) == trigger_digest("m.T", {"b": 2, "a": 1})
    assert trigger_digest("m.T", {"a": 1}) != trigger_digest("m.U", {"a": 1})
    assert trigger_digest("m.T", {"a": 1}) != trigger_digest("m.T", {"a": 2})


@pytest.mark.parametrize("kwargs", [{"a": object()}, {"a": float("nan")}, {1: 2}, [1], {"a": {1}}])
def test_arguments_that_json_cannot_hold_are_refused(kwargs: Any) -> None:
    with pytest.raises(PluginError, match="arguments"):
        canonical_kwargs(kwargs)
