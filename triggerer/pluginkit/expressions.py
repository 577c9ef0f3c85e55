"""Conditions in CEL, the Common Expression Language, for cases beyond `match`.

An expression can say "or", calculate, compare two fields, and search lists. For all other conditions prefer `match`,
which needs no further package and is faster. An expression takes about 20 µs for each message and watcher.

We chose CEL because its programs always end and have no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from triggerer.errors import DagError

# Finds the names that macros bind, such as `item` in `value.items.exists(item, item.sku == "x")`.
_BOUND: Final = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|filter|map)\s*\(\s*(\w+)\s*,")
# If an evaluation raises one of these errors, the expression does not hold. For example, a field is missing, an
# operator does not support a type, or a number is too large.
_DOES_NOT_HOLD = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


def compile_expression(
    source: Any, attributes: Mapping[str, Callable[[Any], Any]]
) -> Callable[[Any, Any], bool]:
    """Return a function that takes a message and its decoded value, and tests whether the expression holds.

    The expression can use the variable `value` and the names in `attributes`. If a field is missing, or an operator
    does not support the field's type, the expression does not hold. As in `match`, that is no error.

    Raises:
        DagError: The text is no expression or uses an unknown name, or the package `cel` is not installed.
    """
    if not isinstance(source, str) or not source.strip():
        raise DagError(f"an expression must be a non-empty text, not {source!r}")
    try:
        # Imported here, because few triggers need this package, and the import takes 0.2 s.
        import cel
    except ImportError as error:
        raise DagError(
            f"the expression {source!r} needs a package that is not installed",
            hint="pip install 'triggerer[cel]'",
        ) from error
    try:
        program = cel.compile(source)
    except ValueError as error:
        raise DagError(f"the expression {source!r} cannot be read: {error}") from error
    used = set(program.variables())
    unknown = sorted(used - {"value", *attributes, *_BOUND.findall(source)})
    if unknown:
        known = ", ".join(sorted(("value", *attributes)))
        raise DagError(f"the expression {source!r} uses {unknown[0]!r}", hint=f"known: {known}")
    getters = {name: attributes[name] for name in used & attributes.keys()}

    def holds(message: Any, value: Any) -> bool:
        names = {name: get(message) for name, get in getters.items()}
        names["value"] = value
        try:
            return program.execute(names) is True
        except _DOES_NOT_HOLD:
            return False

    return holds
