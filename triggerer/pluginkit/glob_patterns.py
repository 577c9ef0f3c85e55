"""Patterns of object keys, as shells and buckets have them."""

from __future__ import annotations

import re


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
            parts.append("(?:[^/]+/)*")
            position += 3
        elif pattern.startswith("**", position):
            parts.append(".*")
            position += 2
        elif pattern[position] == "*":
            parts.append("[^/]*")
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
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from error


def _set(content: str) -> str:
    negated = content.startswith("!")
    members = re.sub(r"[\\\[\]^&~|]", lambda found: "\\" + found[0], content[negated:])
    # Two in a row are kept by the language for set differences, and warned of.
    members = re.sub(r"(?<=-)-", r"\\-", members)
    return f"[^/{members}]" if negated else f"(?!/)[{members}]"
