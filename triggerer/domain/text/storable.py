"""Finds text that PostgreSQL cannot store: NUL characters (in text and in JSON), and halves of surrogate pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from triggerer.errors import RowRefused

MAX_PARTITION_KEY: Final = 250
"""The length of the longest partition key, in characters."""


def strings_with_nul(document: object) -> Iterator[str]:
    """Yield the strings of a JSON document, keys included, that have a NUL character."""
    if isinstance(document, str):
        if "\0" in document:
            yield document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield from strings_with_nul(key)
            yield from strings_with_nul(value)
    elif isinstance(document, list | tuple):
        for item in document:
            yield from strings_with_nul(item)


def storable_text(text: str) -> str:
    r"""Return the text, with escapes such as `\x00` for the characters that PostgreSQL cannot store."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def check_partition_key(key: object) -> None:
    """Check that a value can be an event's partition key.

    Raises:
        RowRefused: The key is not a string, is empty or too long, has a NUL character, or is not valid Unicode.
    """
    if not isinstance(key, str) or not 0 < len(key) <= MAX_PARTITION_KEY or "\0" in key:
        raise RowRefused(
            f"a partition key has 1 to {MAX_PARTITION_KEY} characters, none of them NUL, not {key!r}"
        )
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise RowRefused(f"the partition key {key!r} is not Unicode: {error}") from error
