"""Patterns of object keys."""

from contextlib import suppress

import pytest
from hypothesis import example, given
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
