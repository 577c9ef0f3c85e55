"""Patterns of object keys."""

import time
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triggerer.errors import DagError
from triggerer.pluginkit.glob_patterns import compile_glob
from triggerer.pluginkit.matching import compile_match


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.json", ["a.json", ".json"], ["a/b.json", "a.jsonl"]),
        ("in/*/x", ["in/a/x"], ["in/x", "in/a/b/x"]),
        ("in/**", ["in/a", "in/a/b"], ["out/a"]),
        ("**/x.csv", ["x.csv", "a/b/x.csv"], ["ax.csv"]),
        ("in/**/x", ["in/x", "in/a/b/x"], ["inx"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[ab]x", ["ax", "bx"], ["cx"]),
        ("[!a-c]x", ["dx"], ["ax", "/x"]),
        ("[]]", ["]"], ["["]),
        ("a.b+c(d)", ["a.b+c(d)"], ["aXb+c(d)"]),
    ],
)
def test_a_pattern_matches_whole_texts(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    compiled = compile_glob(pattern)
    assert [text for text in matching if not compiled.fullmatch(text)] == []
    assert [text for text in others if compiled.fullmatch(text)] == []


@given(st.text(alphabet=st.characters(exclude_characters="*?[", exclude_categories=("Cs",))))
def test_a_text_without_wildcards_matches_itself(text: str) -> None:
    assert compile_glob(text).fullmatch(text)


@example("[?--]", "")
@example("[---]", "-")
@given(st.text(alphabet="ab*?[]!-/", max_size=12), st.text(alphabet="ab/", max_size=12))
def test_any_pattern_compiles_or_is_refused(pattern: str, text: str) -> None:
    with suppress(ValueError):
        compile_glob(pattern).fullmatch(text)


def _matches(pattern: str, text: str) -> bool:
    """A slow matcher that follows the docstring of `compile_glob`, one character after the other."""
    folder = text.find("/") if "/" in text else len(text)
    if not pattern:
        return not text
    if pattern.startswith("**/"):
        is_in_folder = 0 < folder < len(text) and _matches(pattern, text[folder + 1 :])
        return is_in_folder or _matches(pattern[3:], text)
    if pattern.startswith("**"):
        return any(_matches(pattern[2:], text[at:]) for at in range(len(text) + 1))
    if pattern.startswith("*"):
        return any(_matches(pattern[1:], text[at:]) for at in range(folder + 1))
    is_next = text != "" and (pattern[0] == text[0] or (pattern[0] == "?" and text[0] != "/"))
    return is_next and _matches(pattern[1:], text[1:])


@example("*a**/b", "xaab")
@example("**a*b", "a/ab")
@example("**/a/**/a/b", "a/b/a/a/b")
@settings(max_examples=500)
@given(
    st.lists(st.sampled_from(["*", "**", "**/", "a", "b", "/", "?"]), max_size=7).map("".join),
    st.text(alphabet="ab/", max_size=8),
)
def test_a_pattern_matches_what_its_characters_say(pattern: str, text: str) -> None:
    assert bool(compile_glob(pattern).fullmatch(text)) == _matches(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("*-*-*-*.json", "-" * 500),
        ("**-**-**-**.json", "-" * 500),
        ("in/*-*-*-*-x", f"in/{'-' * 500}"),
        ("**/a/**/a/**/a/**/a/**/x", "a/" * 400),
    ],
)
def test_a_long_key_that_does_not_match_is_soon_seen_not_to(pattern: str, key: str) -> None:
    compiled = compile_glob(pattern)
    started = time.thread_time()
    assert not compiled.fullmatch(key)
    # A matcher that tried every combination blocked the event loop for 5 s and more.
    assert time.thread_time() - started < 1


def test_prefix_suffix_and_glob_are_operators_of_match() -> None:
    def matches(condition: dict[str, object], key: object) -> bool:
        test = compile_match({"key": condition}, {})
        assert test is not None
        return test(None, {"key": key})

    assert matches({"prefix": "in/", "suffix": ".json", "glob": "in/*.json"}, "in/a.json")
    assert not matches({"prefix": "in/"}, "out/a")
    assert not matches({"suffix": ".json"}, "a.csv")
    assert not matches({"glob": "*.json"}, 3)
    for name in ("prefix", "suffix", "glob"):
        with pytest.raises(DagError, match="a text is needed"):
            matches({name: 3}, "x")
    with pytest.raises(DagError, match="not closed"):
        matches({"glob": "[a"}, "x")
