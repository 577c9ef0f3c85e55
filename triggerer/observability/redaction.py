"""What of settings, arguments, errors and log lines may be shown: the one place that decides it.

Two things tell a secret: where it stands (under a key such as `sasl_plain_password`, in a URL, behind `password=`), and
that it is known to be one, since the settings say so (`remember_secret`). What is known is hidden wherever it appears.
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
# Names of classes, switches and files, beside the secrets that they are about. An operator has to see which file it is.
_NO_SECRET: Final = re.compile(
    r"(provider([._-](path|type))?|[._-]type|enabled?|(?<=key)_?name|[._-](file|path))$",
    re.IGNORECASE,
)

# Texts hold messages, and those may be one long word (Base64). So a word is looked at from its beginning only, and what
# a lookahead or a possessive quantifier has passed is not tried again: the time grows with the text, not its square.
# Up to the last "@" of the word: a password may have "/", ":" and "@" in it, unquoted.
_USER_INFO: Final = re.compile(
    r"(?P<before>(?<![^\s\"'<>])(?=[^\s\"'<>]*@)[^\s\"'<>]*?://[^:/@\s?#\"'<>]*+:)(?P<secret>[^\s\"'<>]*)(?=@)"
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

# What is shorter would hide half of every line.
_SHORTEST: Final = 6
_SHORTEST_LINE: Final = 16
_MOST_KNOWN: Final = 1000
_known: dict[str, None] = {}
_known_pattern: re.Pattern[str] | None = None


def is_secret_key(key: str) -> bool:
    """Whether what stands under such a key is a secret: `fs.azure.account.key.x.net`, `ssl_keyfile_password`."""
    return _SECRET_KEY.search(key) is not None and _NO_SECRET.search(key) is None


def redact(key: str, value: Any) -> Any:
    """Return the value as it may be shown: secrets hidden, references to them left readable.

    Mappings and lists are returned as new ones, and looked into: below a key that names a secret all is hidden.
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
    """Return a message with what is a secret in it hidden: known ones, and those in URLs and assignments."""
    text = hide_known(text)
    # Each of the shapes has one of these; most texts have none.
    if "=" in text or "@" in text or ":" in text or "earer " in text or "asic " in text:
        for shape in _SHAPES:
            text = shape.sub(_without_secret, text)
    return text


def hide_known(text: str) -> str:
    """Return the text without the secrets that `remember_secret` was given."""
    return text if _known_pattern is None else _known_pattern.sub(HIDDEN, text)


def remember_secret(value: str) -> None:
    """Have this value hidden wherever it appears from now on, in any of its usual spellings.

    Does nothing if it is shorter than six characters.
    """
    global _known_pattern  # noqa: PLW0603  (of the process, as the logging is that has to know them)
    spellings = {value, unquote(value)}
    spellings |= {line.strip() for line in value.splitlines() if len(line) >= _SHORTEST_LINE}
    spellings = {line for line in spellings if not line.startswith("-----")}
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


def remember_secrets_in(key: str, value: Any) -> None:
    """Have hidden what of a setting is a secret: by its key, or as a part of a URL. References are left out."""
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
    """Whether the value says where a secret is, rather than what it is."""
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
