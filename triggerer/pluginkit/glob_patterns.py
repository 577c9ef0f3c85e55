"""Patterns of object keys, as shells and buckets have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_IN_FOLDER: Final = "[^/]*"
_ANY: Final = ".*"
_FOLDERS: Final = "(?:[^/]+/)*"
_STARS: Final = (_IN_FOLDER, _ANY, _FOLDERS)


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Return what a whole text has to match.

    `*` stands for any characters but `/`, `**` for any, `**/` for any folders or none, `?` for one character but `/`,
    `[a-c]` and `[!a-c]` for one of these, or of the others. Unlike `fnmatch`, whose `*` goes through folders.

    Raises:
        ValueError: A bracket is not closed, or what is in it is no range.
    """
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        if pattern.startswith("**/", position):
            parts.append(_FOLDERS)
            position += 3
        elif pattern.startswith("**", position):
            parts.append(_ANY)
            position += 2
        elif pattern[position] == "*":
            parts.append(_IN_FOLDER)
            position += 1
        elif pattern[position] == "?":
            parts.append("[^/]")
            position += 1
        elif pattern[position] == "[":
            # A bracket that comes first in a set belongs to it.
            end = pattern.find("]", position + (3 if pattern.startswith("[!", position) else 2))
            if end < 0:
                raise ValueError(f"a bracket of {pattern!r} is not closed")
            parts.append(_set(pattern[position + 1 : end]))
            position = end + 1
        else:
            parts.append(re.escape(pattern[position]))
            position += 1
    try:
        return re.compile("".join(_without_retries(parts)), re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from error


def _without_retries(parts: list[str]) -> Iterator[str]:
    """Yield the parts, where nothing is tried again that makes no difference.

    What stands between two stars is taken where it comes first: the second star goes through whatever the first one
    would have gone through. Without this the time to see that a key does not match grows with a power of its length,
    one for each star, and a key is whatever somebody has uploaded.
    """
    start = 0
    for position in [*(i for i, part in enumerate(parts) if part in _STARS), len(parts)]:
        first, between = parts[start : start + 1], parts[start + 1 : position]
        second = parts[position : position + 1]
        is_free = (
            first == second == [_ANY]
            or (first == [_IN_FOLDER] and second in ([_IN_FOLDER], [_ANY]))
            # Whole folders, which the second one goes through as well.
            or (first == second == [_FOLDERS] and between[-1:] == ["/"])
        )
        if is_free:
            yield f"(?>{first[0]}?{''.join(between)})"
        else:
            yield from parts[start:position]
        start = position


def _set(content: str) -> str:
    negated = content.startswith("!")
    members = re.sub(r"[\\\[\]^&~|]", lambda found: "\\" + found[0], content[negated:])
    # Two in a row are kept by the language for set differences, and warned of.
    members = re.sub(r"(?<=-)-", r"\\-", members)
    return f"[^/{members}]" if negated else f"(?!/)[{members}]"
