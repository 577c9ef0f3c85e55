"""Glob patterns for keys of objects in buckets, such as `in/**/*.csv`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_IN_FOLDER: Final = "[^/]*"
_ANY: Final = ".*"
_FOLDERS: Final = "(?:[^/]+/)*"
_STARS: Final = (_IN_FOLDER, _ANY, _FOLDERS)


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Return a regular expression that a whole text has to match.

    - `?` matches one character, and `*` any number of characters. Neither matches `/`.
    - `**` matches any number of characters, including `/`. `**/` matches any number of folders.
    - `[a-c]` matches one character of a range, and `[!a-c]` one outside the range. Neither matches `/`.

    Python's `fnmatch` is not used, because its `*` matches `/` too.

    Raises:
        ValueError: A bracket is not closed, or contains no valid range.
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
            # A closing bracket that comes first in a set is an element of the set.
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
    """Yield the parts, with atomic groups where backtracking cannot change the result.

    Without atomic groups, a long key that does not match could block the service. Strangers who upload objects choose
    the keys. For example, in `*a*b` it is enough to try the first "a" of a key, because the second star also matches
    any later "a".
    """
    start = 0
    for position in [*(i for i, part in enumerate(parts) if part in _STARS), len(parts)]:
        first, between = parts[start : start + 1], parts[start + 1 : position]
        second = parts[position : position + 1]
        is_free = (
            first == second == [_ANY]
            or (first == [_IN_FOLDER] and second in ([_IN_FOLDER], [_ANY]))
            # If the text between two `**/` ends with a slash, the second `**/` can match whatever the first could.
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
    # Python warns about two hyphens in a row, because later versions may read them as a difference of sets.
    members = re.sub(r"(?<=-)-", r"\\-", members)
    return f"[^/{members}]" if negated else f"(?!/)[{members}]"
