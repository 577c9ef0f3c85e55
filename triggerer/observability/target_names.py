"""Names targets of notifications without their secrets, and hides the URLs of targets.

Almost every part of a target's URL can be a secret, such as the host in `slack://T1JJ3T3L2/…`. So only the scheme of
the URL is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from triggerer.observability.redaction import (
    HIDDEN,
    is_reference,
    redact,
    remember_secret,
)

_SETTING: Final = ("notify", "urls")
_HOST_ONLY: Final = re.compile(r"[\w.\-]+(:\d+)?/?")


def target_names(written: Iterable[str]) -> list[str]:
    """Return a name for each target, in order: its reference such as `env:SLACK`, or `slack://***`.

    Targets that would have the same name are numbered: `slack://***`, `slack://***#2`.
    """
    seen = Counter[str]()
    names = []
    for one in written:
        name = _hidden(one)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def remember_targets(urls: Iterable[str]) -> None:
    """Hide these URLs wherever they appear in the output of this process, with and without their scheme."""
    for url in urls:
        if not is_reference(url):
            remember_secret(url)
            # If the URL without its scheme is only a host, such as `localhost`, do not hide it: other lines also need
            # to show this host.
            if not _HOST_ONLY.fullmatch(rest := url.partition("://")[2]):
                remember_secret(rest)


def redact_setting(section: str, key: str, value: Any) -> Any:
    """Return a setting's value with its secrets hidden."""
    if (section, key) != _SETTING:
        return redact(key, value)
    if isinstance(value, str):
        return _hidden(value)
    if isinstance(value, list | tuple):
        return [_hidden(one) if isinstance(one, str) else HIDDEN for one in value]
    return HIDDEN


def _hidden(written: str) -> str:
    if is_reference(written):
        return written
    scheme, is_url, _ = written.partition("://")
    return f"{scheme}://{HIDDEN}" if is_url and scheme.isidentifier() else HIDDEN
