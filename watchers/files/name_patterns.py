"""Patterns of file names, with the wildcards of `pluginkit.glob_patterns`. Names with a leading dot are hidden."""

from __future__ import annotations

from collections.abc import Iterable

from triggerer.errors import DagError
from triggerer.pluginkit.arguments import text_argument
from triggerer.pluginkit.glob_patterns import compile_glob


class NamePattern:
    """A pattern of file names.

    Args:
        text: The pattern, checked by `pattern_argument`.
    """

    __slots__ = ("_matches", "_takes_hidden", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._matches = compile_glob(text).fullmatch
        self._takes_hidden = text.startswith(".")

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches.

        A name that begins with a dot matches only a pattern that begins with a dot.
        """
        if name.startswith(".") and not self._takes_hidden:
            return False
        return self._matches(name) is not None


def matching(name: str, patterns: Iterable[NamePattern]) -> list[str]:
    """Return the texts of the patterns that a name matches."""
    return [pattern.text for pattern in patterns if pattern.matches(name)]


def pattern_argument(value: object) -> str:
    """Return the argument `pattern`.

    Raises:
        DagError: The value is no pattern of a file name.
    """
    pattern = text_argument(value, "pattern")
    if "/" in pattern:
        raise DagError(
            f"pattern matches names in one directory, so it cannot have a /: {pattern!r}",
            hint="name the folder in directory; each folder has a trigger of its own",
        )
    if "{" in pattern.replace("[{]", ""):
        raise DagError(
            f"pattern has no braces for alternatives: {pattern!r}",
            hint="give the asset a watcher for each alternative; [{] matches the character {",
        )
    try:
        compile_glob(pattern)
    except ValueError as error:
        raise DagError(f"pattern {pattern!r}: {error}") from error
    return pattern
