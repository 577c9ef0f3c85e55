"""Asset expressions: assets and aliases, combined by `&` (all) and `|` (any).

In an expression, an asset is true while one of its events waits for the DAG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from triggerer.domain.assets import Asset, AssetAlias, Combinable
from triggerer.errors import DagError

Leaf: TypeAlias = "Asset | AssetAlias"
Condition: TypeAlias = "Asset | AssetAlias | AssetAll | AssetAny"


@dataclass(frozen=True, slots=True, init=False)
class _Group(Combinable):
    """An expression of distinct operands, in the written order. `a & (b & c)` becomes `a & b & c`."""

    objects: tuple[Condition, ...]
    repeated: tuple[Leaf, ...] = field(compare=False, repr=False)
    """The repeated operands, such as the second `a` of `a & b & a`. Equal assets may have different watchers."""

    def __init__(self, *objects: Combinable) -> None:
        flat: dict[Condition, None] = {}
        repeated: list[Leaf] = []
        for operand in objects:
            if not isinstance(operand, Asset | AssetAlias | AssetAll | AssetAny):
                raise DagError(
                    f"{type(self).__name__} takes assets, aliases and expressions, not {operand!r}"
                )
            parts: tuple[Condition, ...] = (operand,)
            if isinstance(operand, _Group) and type(operand) is type(self):
                parts = operand.objects
                repeated += operand.repeated
            for one in parts:
                if one in flat:
                    repeated += written_leaves_of(one)
                flat.setdefault(one)
        if not flat:
            raise DagError(
                f"{type(self).__name__}() has no assets: it would always or never be true"
            )
        object.__setattr__(self, "objects", tuple(flat))
        object.__setattr__(self, "repeated", tuple(repeated))


@dataclass(frozen=True, slots=True, init=False)
class AssetAll(_Group):
    """True once all operands are true; written `a & b`."""


@dataclass(frozen=True, slots=True, init=False)
class AssetAny(_Group):
    """True once any operand is true; written `a | b`."""


def is_satisfied(condition: Condition, has_event: Callable[[Leaf], bool]) -> bool:
    """Return whether the expression is true.

    Args:
        has_event: For an asset, returns whether one of its events waits. For an alias, returns whether an event of any
            of its assets waits. Called for the operands from left to right, until the result is known.
    """
    match condition:
        case AssetAll():
            return all(is_satisfied(operand, has_event) for operand in condition.objects)
        case AssetAny():
            return any(is_satisfied(operand, has_event) for operand in condition.objects)
        case Asset() | AssetAlias():
            return has_event(condition)


def leaves_of(condition: Condition) -> Iterator[Leaf]:
    """Yield the assets and aliases of the expression from left to right: `a`, `b`, `a`, `c` for `(a & b) | (a & c)`."""
    if isinstance(condition, AssetAll | AssetAny):
        for operand in condition.objects:
            yield from leaves_of(operand)
    else:
        yield condition


def written_leaves_of(condition: Condition) -> Iterator[Leaf]:
    """Yield every asset and alias that the author wrote, also the duplicates that `leaves_of` leaves out."""
    if isinstance(condition, AssetAll | AssetAny):
        for operand in condition.objects:
            yield from written_leaves_of(operand)
        yield from condition.repeated
    else:
        yield condition


def assets_of(condition: Condition) -> tuple[Asset, ...]:
    """Return the distinct assets of the expression, in order; aliases are not resolved."""
    return tuple(dict.fromkeys(leaf for leaf in leaves_of(condition) if isinstance(leaf, Asset)))


def aliases_of(condition: Condition) -> tuple[AssetAlias, ...]:
    """Return the distinct aliases of the expression, in order."""
    return tuple(
        dict.fromkeys(leaf for leaf in leaves_of(condition) if isinstance(leaf, AssetAlias))
    )


_FORMS: Final = frozenset({"asset", "alias", "all", "any"})
"""The keys of a stored expression. Each expression has exactly one of them, which tells its kind."""


def condition_to_json(condition: Condition) -> dict[str, Any]:
    """Return the expression as the store writes it.

    The form is `{"asset": {"name", "uri"}}`, `{"alias": name}`, `{"all": [...]}` or `{"any": [...]}`.
    """
    match condition:
        case AssetAll():
            return {"all": [condition_to_json(operand) for operand in condition.objects]}
        case AssetAny():
            return {"any": [condition_to_json(operand) for operand in condition.objects]}
        case Asset():
            return {"asset": {"name": condition.name, "uri": condition.uri}}
        case AssetAlias():
            return {"alias": condition.name}


def condition_from_json(value: Any) -> Condition:
    """Return the stored expression. The expression's assets have only a name and a URI.

    Unknown keys, which a later release wrote, are ignored.

    Raises:
        DagError: `condition_to_json` did not write this value.
    """
    if isinstance(value, dict) and len(_FORMS & value.keys()) == 1:
        match value:
            case {"asset": {"name": str(name), "uri": str(uri)}}:
                return Asset.identified(name, uri)
            case {"alias": str(name)}:
                return AssetAlias(name)
            case {"all": [_, *_] as operands}:
                return AssetAll(*map(condition_from_json, operands))
            case {"any": [_, *_] as operands}:
                return AssetAny(*map(condition_from_json, operands))
    raise DagError(f"not an asset expression: {value!r}")
