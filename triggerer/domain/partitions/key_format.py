"""Writes and parses the keys of periods, by a format of `strftime` that may also contain `{quarter}`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from triggerer.errors import DagError, InvalidPartitionKey

_PATTERNS: Final = {
    "%Y": r"(?P<year>\d{4})",
    "%m": r"(?P<month>\d{2})",
    "%d": r"(?P<day>\d{2})",
    "%H": r"(?P<hour>\d{2})",
    "%M": r"(?P<minute>\d{2})",
    "%S": r"(?P<second>\d{2})",
    # The number of the week is matched but not used, because the date determines it.
    "%V": r"\d{2}",
    "%U": r"\d{2}",
    "%W": r"\d{2}",
    "{quarter}": r"(?P<quarter>[1-4])",
}
_TOKEN = re.compile(r"%.|\{\w*\}|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """A format of `strftime` that may also contain `{quarter}`.

    Raises:
        DagError: The text is empty, has another name in braces, or repeats a directive.
    """

    text: str
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False)
    """The format as a regular expression. None: the format has a directive that needs `strptime`, such as %z."""

    def __post_init__(self) -> None:
        tokens = _TOKEN.findall(_checked_text(self.text))
        if unknown := [
            one for one in tokens if one[0] == "{" and len(one) > 1 and one != "{quarter}"
        ]:
            raise DagError(
                f"format of keys {self.text!r}: {unknown[0]} is unknown; only {{quarter}} is known"
            )
        repeated = [one for one in set(tokens) & _PATTERNS.keys() if tokens.count(one) > 1]
        if repeated:
            raise DagError(f"format of keys {self.text!r} has {repeated[0]} twice")
        others = [one for one in tokens if one[0] == "%" and len(one) > 1 and one not in _PATTERNS]
        pattern = (
            None if others else "".join(_PATTERNS.get(one) or re.escape(one) for one in tokens)
        )
        object.__setattr__(self, "_pattern", pattern and re.compile(pattern, re.ASCII))

    @property
    def has_offset(self) -> bool:
        """True if keys show the offset to UTC."""
        return "%z" in self.text or "%:z" in self.text

    def format(self, moment: datetime) -> str:
        """Return the key of a moment."""
        text = self.text.replace("{quarter}", str((moment.month - 1) // 3 + 1))
        if moment.year < 1000:
            # The C library of Linux writes such years without leading zeros, and `parse` would refuse the key.
            year = f"{moment.year:04}"
            text = "".join(year if one == "%Y" else one for one in _TOKEN.findall(text))
        return moment.strftime(text)

    def parse(self, key: str) -> datetime:
        """Return the moment that a key names, with a zone if the format has one.

        Raises:
            InvalidPartitionKey: The key does not match the format, or names a day that does not exist.
        """
        try:
            return self._by_pattern(key) if self._pattern else self._by_strptime(key)
        except ValueError as error:
            raise InvalidPartitionKey(
                f"partition key {key!r} is not of the format {self.text}", key=key
            ) from error

    def _by_pattern(self, key: str) -> datetime:
        assert self._pattern is not None
        found = self._pattern.fullmatch(key)
        if found is None:
            raise ValueError(key)
        parts = {name: int(text) for name, text in found.groupdict().items()}
        quarter = parts.pop("quarter", None)
        if quarter is not None:
            parts.setdefault("month", quarter * 3 - 2)
        if "year" not in parts:
            raise ValueError("no year")
        year, month, day = (parts.pop(name, 1) for name in ("year", "month", "day"))
        hour, minute, second = (parts.get(name, 0) for name in ("hour", "minute", "second"))
        return datetime(year, month, day, hour, minute, second)  # noqa: DTZ001  (on the mapper's own clock)

    def _by_strptime(self, key: str) -> datetime:
        return datetime.strptime(key, self.text)  # noqa: DTZ007  (on the mapper's own clock without %z)


def _checked_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise DagError(f"a format of keys is a text such as %Y-%m-%d, not {value!r}")
    return value
