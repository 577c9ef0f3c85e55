"""Hides secrets in settings, arguments, errors and log lines.

A secret is recognized in two ways:

- By its position: the value of a key such as `sasl_plain_password`, a secret part of a URL, the text after `password=`.
- By its value: `remember_secret` has stored the value, for instance from the settings. This value is hidden wherever it
  appears.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

HIDDEN: Final = "***"

_WORDS: Final = (
    r"pass(?:word|wd|phrase|code)|(?<![a-z])pwd|secret|token|credential|private"
    r"|(?:api|access|account|shared|storage)[._-]?key|jaas|authorization|(?<![a-z])auth(?![a-z])(?!\.type)"
    r"|connection[._-]?string|(?<![a-z])sas(?![a-z])|(?<![a-z])sig(?:nature)?(?![a-z])|cookie|bearer"
)
_SECRET_KEY: Final = re.compile(_WORDS, re.IGNORECASE)
# Keys such as `credentials.provider` and `token_file` contain the words of secret keys. But these values are no
# secrets: they are switches, or names of classes or files, which an operator must see.
_NO_SECRET: Final = re.compile(
    r"(provider([._-](path|type))?|[._-]type|enabled?|(?<=key)_?name|[._-](file|path))$",
    re.IGNORECASE,
)

# These patterns need linear time, even for a very long word such as a message in Base64. So they look ahead only at the
# start of a word or of a URL's parameter, and most of their quantifiers are possessive. A URL's password may contain
# "/", ":" and "@", so `_USER_INFO` takes everything up to the last "@" of the word. Its first part is atomic: if no "@"
# follows the first "://", none follows a later one.
_USER_INFO: Final = re.compile(
    r"(?P<before>(?<![^\s\"'<>])(?=[^\s\"'<>]*@)(?>[^\s\"'<>]*?://[^:/@\s?#\"'<>]*+:))"
    r"(?P<secret>[^\s\"'<>]*)(?=@)"
)
_KEY_ALONE: Final = re.compile(r"(?P<before>\bhttps?://)(?P<secret>[^:/@\s?#\"'<>]++)(?=@)")
_PARAMETER: Final = re.compile(
    r"(?P<before>(?:(?<=[&;])|(?<![^=&;\s\"'<>])[^?=&;\s\"'<>]*+\?)"
    rf"(?=[^=&;\s\"'<>]*(?:{_WORDS}))[^=&;\s\"'<>]*+=)(?P<secret>[^&;\s\"'<>]++)",
    re.IGNORECASE,
)
_ASSIGNED: Final = re.compile(
    rf"(?P<before>(?<![\w.\-])(?=[\w.\-]*(?:{_WORDS}))[\w.\-]++(?:\s?=\s?|[\"']\s*+[:=]\s*+))"
    r"(?P<secret>\"(?:[^\"\\]|\\.)+\"|'(?:[^'\\]|\\.)+'|[^\s,;&\"'()\[\]{}]++)",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"(?P<before>\b(?:bearer|basic)\s+)(?P<secret>[\w.~+/=\-]{8,})", re.IGNORECASE
)
_NAME: Final = re.compile(r"(?<![\w.\-])[\w.\-]++(?=[\"']?\s*[=:]\s*$)")
_SHAPES: Final = (_USER_INFO, _KEY_ALONE, _PARAMETER, _ASSIGNED, _BEARER)

# The fewest characters of a known secret. Shorter values occur by chance in ordinary text. If they counted as secrets,
# half of every line would be hidden.
_SHORTEST: Final = 6
# In a secret of several lines, such as a private key, each line with at least this number of characters is hidden.
_SHORTEST_LINE: Final = 16
# In an environment variable, a secret of several lines is often one line: a backslash and "n" stand for each break.
_LINE_BREAK: Final = re.compile(r"(?:\r|\n|\\r|\\n)+")
# The first and the last line of a private key or a certificate are equal in all of them, so they are no secrets.
_FRAME: Final = re.compile(r"-----(?:BEGIN|END) [^-]*-----")
# The most spellings of secrets to remember. The oldest are forgotten first.
_MOST_KNOWN: Final = 1000
_known: dict[str, None] = {}
_known_pattern: re.Pattern[str] | None = None


def is_secret_key(key: str) -> bool:
    """Return whether the key's value is a secret. Examples: `fs.azure.account.key.x.net`, `ssl_keyfile_password`."""
    return _SECRET_KEY.search(key) is not None and _NO_SECRET.search(key) is None


def redact(key: str, value: Any) -> Any:
    """Return a copy of the value with its secrets hidden. References such as `env:NAME` stay readable.

    Mappings and lists are searched. Below a key that names a secret, every value is hidden, except None, True, False
    and an empty string.
    """
    if isinstance(value, Mapping):
        if is_secret_key(key):
            return {name: _hidden(item) for name, item in value.items()}
        return {name: redact(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(key, item) for item in value]
    if is_secret_key(key):
        return _hidden(value)
    return redact_text(value) if isinstance(value, str) and not is_reference(value) else value


def redact_text(text: str) -> str:
    """Return the text without secrets: known values, and the secret parts of URLs and of assignments (`name=value`)."""
    text = hide_known(text)
    if _may_have_secret(text):
        for shape in _SHAPES:
            text = shape.sub(_without_secret, text)
    return text


def _may_have_secret(text: str) -> bool:
    """Return whether any of `_SHAPES` can match.

    Each pattern needs one of these characters or words. Most log lines have none of them.
    """
    if "=" in text or "@" in text or ":" in text:
        return True
    lower = text.lower()
    return "bearer" in lower or "basic" in lower


def hide_known(text: str) -> str:
    """Return the text without the values that `remember_secret` stored."""
    return text if _known_pattern is None else _known_pattern.sub(HIDDEN, text)


def remember_secret(value: str) -> None:
    """Hide this value wherever it appears from now on. Its forms in URLs, JSON and Python literals are hidden too.

    If the value has several lines, such as a private key, each long line is hidden too. A form shorter than six
    characters is not hidden.
    """
    global _known_pattern  # noqa: PLW0603  (one set for the process, like its logging)
    spellings = {value, unquote(value)}
    lines = {line.strip() for line in _LINE_BREAK.split(value) if len(line) >= _SHORTEST_LINE}
    spellings |= {line for line in lines if not _FRAME.fullmatch(line)}
    for spelling in list(spellings):
        spellings |= {quote(spelling, safe=""), quote_plus(spelling)}
        spellings |= {json.dumps(spelling)[1:-1], repr(spelling)[1:-1]}
    new = {spelling for spelling in spellings if len(spelling) >= _SHORTEST} - _known.keys()
    if not new:
        return
    _known.update(dict.fromkeys(sorted(new)))
    for oldest in list(_known)[: max(0, len(_known) - _MOST_KNOWN)]:
        del _known[oldest]
    longest_first = sorted(_known, key=len, reverse=True)
    _known_pattern = re.compile("|".join(map(re.escape, longest_first)))


def forget_secrets() -> None:
    """Forget all remembered values. Only for tests: the secret of one test may be an ordinary word in the next test."""
    global _known_pattern  # noqa: PLW0603
    _known.clear()
    _known_pattern = None


def remember_secrets_in(key: str, value: Any) -> None:
    """Remember the secrets of a setting: the values of secret keys, and the secret parts of URLs.

    If the value of a secret key is a URL, only the URL's secret parts are remembered. References (`env:NAME`,
    `file:PATH`) are no secrets.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            remember_secrets_in(key if is_secret_key(key) else str(name), item)
    elif isinstance(value, list | tuple):
        for item in value:
            remember_secrets_in(key, item)
    elif isinstance(value, str) and not is_reference(value):
        if is_secret_key(key) and "://" not in value:
            remember_secret(value)
        for shape in (_USER_INFO, _KEY_ALONE, _PARAMETER):
            for found in shape.finditer(value):
                remember_secret(found["secret"])


def is_reference(value: str) -> bool:
    """Return whether the value refers to a secret (`env:NAME`, `file:PATH`) instead of being one."""
    return value.startswith(("env:", "file:")) and not value.startswith("file://")


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _hidden(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden(item) for item in value]
    if value is None or isinstance(value, bool) or value == "":
        return value
    return value if isinstance(value, str) and is_reference(value) else HIDDEN


def _without_secret(found: re.Match[str]) -> str:
    secret = found["secret"]
    name = _NAME.search(found["before"]) if found.re in (_PARAMETER, _ASSIGNED) else None
    if name is not None and not is_secret_key(name[0]):
        return found[0]
    if is_reference(secret.strip("\"'")):
        return found[0]
    quoted = secret[0] if secret[:1] in ('"', "'") else ""
    return f"{found['before']}{quoted}{HIDDEN}{quoted}"
