"""Checks the arguments of `KafkaRangeTrigger`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from triggerer.errors import DagError

_SHORTEST_INTERVAL_S: Final = 0.1
_OF_MESSAGES: Final = ("match", "decode", "extra", "partition_key")


def interval_argument(value: Any) -> float:
    """Return the interval in seconds.

    Raises:
        DagError: The value is no number, or the interval is too short.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _SHORTEST_INTERVAL_S <= value < math.inf:
        raise DagError(f"interval must be a number of seconds, at least 0.1, not {value!r}")
    return float(value)


def max_offsets_argument(value: Any) -> int | None:
    """Return the largest number of offsets in one event. None: no limit.

    Raises:
        DagError: The value is neither None nor a whole number above 0.
    """
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DagError(f"max_offsets must be a whole number of at least 1, not {value!r}")
    return value


def refuse_others(kind: str, others: Mapping[str, Any]) -> None:
    """Refuse arguments that `KafkaRangeTrigger` does not have.

    Raises:
        DagError: The argument belongs to triggers that read messages or join a consumer group.
        TypeError: The argument is unknown.
    """
    for name in others:
        if name in _OF_MESSAGES:
            raise DagError(
                f"{kind} reads no message, so it has no `{name}`",
                hint="filter and decode in Spark, or use KafkaEventTrigger",
            )
        if name == "group_id":
            raise DagError(
                f"{kind} has no consumer group: each watcher has a position of its own",
                hint="remove group_id",
            )
        raise TypeError(f"{kind}() got an unexpected keyword argument {name!r}")
