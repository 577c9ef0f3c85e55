"""Writes mappers, windows and policies as JSON, and reads them back. The JSON names a registered class."""

from __future__ import annotations

from typing import Any, Protocol

from triggerer.domain.partitions.base import PartitionMapper
from triggerer.errors import DagError


class Stored(Protocol):
    """A mapper, window or policy that can be stored as JSON."""

    def serialize(self) -> dict[str, Any]:
        """Return JSON from which `deserialize` makes an equal value."""


_kinds: dict[str, type[Any]] = {}


def register(*kinds: type[Any]) -> None:
    """Register classes of this package by their names."""
    _kinds.update((one.__name__, one) for one in kinds)


def to_json(value: Stored) -> dict[str, Any]:
    """Return the JSON that is stored: `{"type": name, "arguments": {...}}`.

    Raises:
        DagError: The class is not registered. Every process must be able to read the stored value.
    """
    kind = type(value)
    if _kinds.get(kind.__name__) is not kind:
        raise DagError(f"{kind.__module__}.{kind.__qualname__} is none of triggerer.partitions")
    return {"type": kind.__name__, "arguments": value.serialize()}


def from_json(value: Any, kind: type[Any]) -> Any:
    """Return the stored mapper, window or policy.

    Raises:
        DagError: `to_json` did not write the value, or the value is not a `kind`.
    """
    match value:
        case {"type": str(name), "arguments": dict(arguments)} if name in _kinds:
            try:
                found = _kinds[name].deserialize(arguments)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise DagError(f"{name} cannot be read from {arguments!r}: {error}") from error
            if isinstance(found, kind):
                return found
    raise DagError(f"not a {kind.__name__}: {value!r}")


def mapper_to_json(mapper: PartitionMapper) -> dict[str, Any]:
    """Return the JSON of a mapper; see `to_json`."""
    return to_json(mapper)


def mapper_from_json(value: Any) -> PartitionMapper:
    """Return the stored mapper; see `from_json`."""
    mapper: PartitionMapper = from_json(value, PartitionMapper)
    return mapper
