"""Finds the types of columns for JSON values. `dataframe.py` describes the types.

A *shape* describes the kinds of many values. Shapes can be merged, so that events that are read in pieces get the same
types as events that are read at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from types import NoneType
from typing import Any, Final

MAX_FIELDS: Final = 1000
"""The most fields of all structs together. Without this bound, an object whose keys are ids would become a struct with
a field for each id."""
MAX_DEPTH: Final = 32
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@dataclass(slots=True)
class Shape:
    """The kinds of the values at one path in many JSON documents, such as `extra.value`.

    Attributes:
        kinds: The Python types of the values, without None; tuples count as lists.
        keys: For objects, the shape of the values under each key, in the order of appearance. None: the objects have
            more than `MAX_FIELDS` keys.
        items: The shape of all elements of lists, and of all values of objects if `keys` is None.
        has_large: True if an integer needs more than 64 bits.
        has_huge: True if an integer does not fit a double.
    """

    kinds: set[type] = field(default_factory=set)
    keys: dict[str, Shape] | None = field(default_factory=dict)
    items: Shape | None = None
    has_large: bool = False
    has_huge: bool = False

    def all_items(self) -> Shape:
        """Return one shape for the objects' values under all keys."""
        if self.keys is None:
            assert self.items is not None
            return self.items
        return merged(self.keys.values())


def shape_of(values: list[Any], depth: int = 0) -> Shape:
    """Return the shape that fits all of these values.

    It is faster to pass all values at once, because `set(map(type, ...))` runs in C.

    Args:
        depth: The number of lists and objects around the values, in the JSON document.
    """
    kinds = set(map(type, values)) - {NoneType}
    found = Shape({list if kind is tuple else kind for kind in kinds})
    if depth >= MAX_DEPTH:
        # Values at this depth become text, so their shape is not needed.
        return found
    if dict in kinds:
        objects = values if kinds == {dict} else [one for one in values if type(one) is dict]
        _add_keys(found, [one for one in objects if one], depth)
    if list in found.kinds:
        lists = [one for one in values if type(one) in (list, tuple)]
        found.items = _joined(found.items, shape_of(list(chain.from_iterable(lists)), depth + 1))
    if int in kinds:
        numbers = [one for one in values if type(one) is int]
        lowest, highest = min(numbers), max(numbers)
        found.has_large = lowest < _LOWEST or highest > _HIGHEST
        found.has_huge = found.has_large and not (_is_double(lowest) and _is_double(highest))
    return found


def _is_double(number: int) -> bool:
    try:
        float(number)
    except OverflowError:
        return False
    return True


def _add_keys(found: Shape, objects: list[dict[str, Any]], depth: int) -> None:
    names = dict.fromkeys(chain.from_iterable(objects))
    if len(names) > MAX_FIELDS:
        found.keys = None
        values = list(chain.from_iterable(one.values() for one in objects))
        found.items = shape_of(values, depth + 1)
    else:
        found.keys = {
            name: shape_of([one.get(name) for one in objects], depth + 1) for name in names
        }


def merged(shapes: Iterable[Shape]) -> Shape:
    """Return the merge of shapes. Keys are in the order of their first appearance."""
    found = Shape()
    for one in shapes:
        _merge_into(found, one)
    return found


def _joined(one: Shape | None, other: Shape | None) -> Shape | None:
    if one is None or other is None:
        return one or other
    return merged((one, other))


def _merge_into(found: Shape, other: Shape) -> None:
    if found.keys is None or other.keys is None or len(found.keys | other.keys) > MAX_FIELDS:
        has_objects = dict in found.kinds, dict in other.kinds
        objects = [
            one.all_items() for one, has in zip((found, other), has_objects, strict=True) if has
        ]
        lists = [one.items for one in (found, other) if one.keys is not None and one.items]
        found.keys, found.items = None, merged([*objects, *lists])
    else:
        for name, shape in other.keys.items():
            known = found.keys.get(name)
            found.keys[name] = shape if known is None else merged((known, shape))
        found.items = _joined(found.items, other.items)
    found.kinds = found.kinds | other.kinds
    found.has_large |= other.has_large
    found.has_huge |= other.has_huge


class Kind(Enum):
    """The outermost type of a column, for instance a struct or text."""

    STRUCT = auto()
    MAP = auto()
    LIST = auto()
    BOOLEAN = auto()
    INTEGER = auto()
    DOUBLE = auto()
    TEXT = auto()
    NOTHING = auto()
    """There is no value. The column becomes text."""
    MIXED = auto()
    """The values have different kinds. The column becomes text."""


@dataclass(frozen=True, slots=True)
class Column:
    """The whole type of a column, with the types of its parts.

    Attributes:
        names: For a struct, a pair for each field: the key in the JSON values, and the field's name. They differ only
            if UTF-8 cannot encode the key.
        items: For a struct, the columns of its fields. For a map or a list, one column for all values.
    """

    kind: Kind
    names: tuple[tuple[str, str], ...] = ()
    items: tuple[Column, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if the values can be stored unchanged: there are no maps, mixed values or renamed fields."""
        if self.kind in (Kind.MAP, Kind.MIXED) or any(key != name for key, name in self.names):
            return False
        return all(item.is_plain for item in self.items)


def column_of(shape: Shape) -> Column:
    """Return the column for objects of this shape: a struct, or a map if there are no keys or too many keys."""
    return _Columns().objects(shape, 0)


class _Columns:
    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def objects(self, shape: Shape, depth: int) -> Column:
        names = [] if shape.keys is None else [(key, encodable(key)) for key in shape.keys]
        # A file cannot store a struct without fields.
        if (
            not names
            or len(names) > self._fields_left
            or len({name for _, name in names}) < len(names)
        ):
            return Column(Kind.MAP, items=(self._column(shape.all_items(), depth + 1),))
        self._fields_left -= len(names)
        assert shape.keys is not None
        items = [self._column(shape.keys[key], depth + 1) for key, _ in names]
        return Column(Kind.STRUCT, tuple(names), tuple(items))

    def _column(self, shape: Shape, depth: int) -> Column:
        kinds = shape.kinds
        if kinds == {dict} and depth < MAX_DEPTH:
            return self.objects(shape, depth)
        if kinds == {list} and depth < MAX_DEPTH:
            return Column(Kind.LIST, items=(self._column(shape.items or Shape(), depth + 1),))
        if kinds == {bool}:
            return Column(Kind.BOOLEAN)
        if kinds == {int} and not shape.has_large:
            return Column(Kind.INTEGER)
        if kinds in ({float}, {int, float}) and not shape.has_huge:
            return Column(Kind.DOUBLE)
        if not kinds:
            return Column(Kind.NOTHING)
        return Column(Kind.TEXT if kinds == {str} else Kind.MIXED)


def encodable(text: str) -> str:
    """Replace single halves of surrogate pairs: JSON can have them as escapes, but UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode("utf-8")
