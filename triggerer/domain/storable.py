"""What the databases cannot hold: NUL characters, in text and in JSON, and halves of surrogate pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def strings_with_nul(document: object) -> Iterator[str]:
    """The strings of a JSON document, keys included, that have a NUL character."""
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
    """The text with escapes in place of the characters that no database takes."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
