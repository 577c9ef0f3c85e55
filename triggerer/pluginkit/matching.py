r"""Conditions on messages, and paths to their fields, written as JSON.

A path such as `order.items.0.sku` names a field of the decoded value. In a list, a number is an index. A dot within a
name is written `\.`. A path that starts with `@` names an attribute of the message, such as `@key`, `@topic` or
`@headers.source`. `@value` is the whole decoded value.

A condition maps paths to requirements. All requirements must hold:

    {"carrier": "AA"}                               equal
    {"origin": ["JFK", "LGA"]}                      one of these
    {"delay": {"gt": 15, "le": 60}}                 all of these operators
    {"@key": {"regex": "^order-"}, "cancelled": {"exists": False}}
    {"carrier": "AA", "@cel": "value.delay > value.limit || value.cancelled"}

The operators:

    eq, ne                                          equal, or not equal
    in, not_in                                      one of a list, or none of a list
    gt, ge, lt, le                                  compare numbers with numbers, and text with text
    regex                                           the pattern is found anywhere in a string
    prefix, suffix                                  a string begins, or ends, with this
    glob                                            a whole string matches, see `triggerer.pluginkit.glob_patterns`
    contains                                        a list has this element, or a string has this part
    exists                                          whether the field exists: True or False

A missing field matches only `{"exists": False}`. A field does not match if its type does not suit
the operator: `{"delay": {"gt": 15}}` does not match the string "20". This is no error.

`@cel` is an expression that must hold, see `triggerer.pluginkit.expressions`. A string instead of a mapping is also
such an expression.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from triggerer.errors import DagError
from triggerer.pluginkit.expressions import compile_expression
from triggerer.pluginkit.glob_patterns import compile_glob

E = TypeVar("E")
Getter = Callable[[E, Any], Any]
"""Returns a field of a message, or MISSING, given the message and its decoded value."""
Test = Callable[[Any], bool]
"""Returns whether a field, which is never MISSING, meets a requirement."""

MISSING: Final = object()
EXPRESSION: Final = "@cel"
_SEPARATOR = re.compile(r"(?<!\\)\.")


def canonical(argument: Any, what: str) -> Any:
    """Return a copy of a JSON argument with sorted keys, so that equal arguments give equal text; None stays None.

    Raises:
        DagError: The argument is not JSON.
    """
    try:
        return json.loads(json.dumps(argument, allow_nan=False, sort_keys=True))
    except (TypeError, ValueError) as error:
        raise DagError(f"{what} must be JSON: {error}") from error


def compile_path(path: Any, attributes: Mapping[str, Callable[[E], Any]]) -> Getter[E]:
    """Return a function that gets the field of a path.

    Args:
        attributes: The names that may follow `@`, each with a function that gets the attribute from a message.
    Raises:
        DagError: The path is empty, or names an attribute that messages do not have.
    """
    steps = _steps(path)
    if not path.startswith("@"):
        if len(steps) == 1:
            name = steps[0]
            return lambda _, value: (
                value.get(name, MISSING) if type(value) is dict else _step(value, name)
            )
        return lambda _, value: _walk(value, steps)
    root, *rest = steps
    if root == "@value":
        return lambda _, value: _walk(value, rest)
    attribute = attributes.get(root[1:])
    if attribute is None:
        known = ", ".join(sorted(f"@{name}" for name in (*attributes, "value")))
        raise DagError(
            f"messages have no {root!r}", hint=f"known: {known}; a field is written without @"
        )
    return lambda message, _: _walk(attribute(message), rest)


def _steps(path: Any) -> tuple[str, ...]:
    if not isinstance(path, str) or not path:
        raise DagError(f"a path must be a non-empty text, not {path!r}")
    return tuple(part.replace("\\.", ".") for part in _SEPARATOR.split(path))


def _walk(value: Any, steps: tuple[str, ...] | list[str]) -> Any:
    for step in steps:
        value = _step(value, step)
        if value is MISSING:
            return MISSING
    return value


def _step(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, MISSING)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        return value[int(step)]
    return MISSING


def compile_match(
    match: Mapping[str, Any] | str | None, attributes: Mapping[str, Callable[[E], Any]]
) -> Callable[[E, Any], bool] | None:
    """Return a function that tests whether a message meets a condition; None if every message meets it.

    Raises:
        DagError: The condition is not written as the module's docstring says.
    """
    if match is None:
        return None
    if isinstance(match, str):
        return compile_expression(match, attributes)
    if not isinstance(match, Mapping):
        raise DagError(f"match must map paths to conditions, not be a {type(match).__name__}")
    if not match:
        return None
    if EXPRESSION in match:
        holds = compile_expression(match[EXPRESSION], attributes)
        others = {path: value for path, value in match.items() if path != EXPRESSION}
        first = compile_match(others, attributes)
        if first is None:
            return holds
        return lambda message, value: first(message, value) and holds(message, value)
    conditions = [
        (compile_path(path, attributes), *_compile_condition(condition, path))
        for path, condition in match.items()
    ]
    if len(conditions) == 1:
        ((get, if_missing, test),) = conditions
        (path,) = match
        if not path.startswith("@") and len(_steps(path)) == 1:
            return _matches_field(_steps(path)[0], if_missing, test)

        def matches_one(message: E, value: Any) -> bool:
            found = get(message, value)
            return if_missing if found is MISSING else test(found)

        return matches_one

    def matches(message: E, value: Any) -> bool:
        for get, if_missing, test in conditions:
            found = get(message, value)
            if not (if_missing if found is MISSING else test(found)):
                return False
        return True

    return matches


def selected_by(match: Mapping[str, Any] | str | None) -> tuple[str, frozenset[Any]] | None:
    """Find a path in `match` whose field must equal one of some fixed values. Return the path and the values, or None.

    The result may select too many messages: in Python, True equals 1, but the condition 1 does not match True.

    Args:
        match: A condition that `compile_match` has accepted.
    """
    if isinstance(match, str):
        return None
    for path, condition in (match or {}).items():
        if path == EXPRESSION:
            continue
        values = _fixed_values(condition)
        if values is not None:
            return path, frozenset(values)
    return None


def _fixed_values(condition: Any) -> list[Any] | None:
    if isinstance(condition, Mapping):
        if condition.get("exists") is False:
            # This condition holds if the field is missing.
            return None
        condition = [condition["eq"]] if "eq" in condition else condition.get("in")
        if condition is None:
            return None
    values = condition if isinstance(condition, list) else [condition]
    return None if any(isinstance(value, (list, dict)) for value in values) else values


def _matches_field(name: str, if_missing: bool, test: Test) -> Callable[[Any, Any], bool]:
    """Return a fast function that tests one field of an object. Most conditions test one field."""

    def matches(_: Any, value: Any) -> bool:
        found = value.get(name, MISSING) if type(value) is dict else _step(value, name)
        return if_missing if found is MISSING else test(found)

    return matches


def _compile_condition(condition: Any, path: str) -> tuple[bool, Test]:
    """Return whether a missing field meets the condition, and a test for a field that exists."""
    if isinstance(condition, list):
        return False, _one_of(condition)
    if not isinstance(condition, Mapping):
        return False, _equal(condition)
    if not condition:
        raise DagError(
            f"the condition on {path!r} is empty", hint='to ask for presence: {"exists": true}'
        )
    tests: list[Test] = []
    must_exist = True
    for name, operand in condition.items():
        make = _OPERATORS.get(name)
        if make is None:
            raise DagError(
                f"unknown operator {name!r} in the condition on {path!r}",
                hint="known: "
                + ", ".join(sorted(_OPERATORS))
                + '; to compare with an object, write {"eq": {…}}',
            )
        try:
            tests.append(make(operand))
        except (TypeError, ValueError, re.error) as error:
            raise DagError(f"operator {name!r} in the condition on {path!r}: {error}") from error
        if name == "exists" and not operand:
            must_exist = False
    if len(tests) == 1:
        return not must_exist, tests[0]
    return not must_exist, lambda found: all(test(found) for test in tests)


def _same(found: Any, expected: Any) -> bool:
    # In JSON true does not equal 1; in Python it does.
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


def _equal(expected: Any) -> Test:
    if isinstance(expected, str):
        # Only a text equals a text, so the type need not be tested.
        return lambda found: found == expected
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        return lambda found: found == expected and not isinstance(found, bool)
    return lambda found: _same(found, expected)


def _one_of(allowed: Any) -> Test:
    if not isinstance(allowed, list):
        raise TypeError("a list is needed")
    if all(isinstance(item, str) for item in allowed):
        texts = frozenset(allowed)
        return lambda found: isinstance(found, str) and found in texts
    return lambda found: any(_same(found, item) for item in allowed)


def _none_of(excluded: Any) -> Test:
    test = _one_of(excluded)
    return lambda found: not test(found)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Test]:
    def make(bound: Any) -> Test:
        kind = str if isinstance(bound, str) else (int, float)
        if isinstance(bound, bool) or not isinstance(bound, (str, int, float)):
            raise TypeError("a number or a text is needed")
        return lambda found: (
            isinstance(found, kind) and not isinstance(found, bool) and compare(found, bound)
        )

    return make


def _found_by(pattern: Any) -> Test:
    if not isinstance(pattern, str):
        raise TypeError("a text is needed")
    search = re.compile(pattern).search
    return lambda found: isinstance(found, str) and search(found) is not None


def _text_test(test: Callable[[str, str], bool]) -> Callable[[Any], Test]:
    def make(operand: Any) -> Test:
        if not isinstance(operand, str):
            raise TypeError("a text is needed")
        return lambda found: isinstance(found, str) and test(found, operand)

    return make


def _globbed(pattern: Any) -> Test:
    if not isinstance(pattern, str):
        raise TypeError("a text is needed")
    matches = compile_glob(pattern).fullmatch
    return lambda found: isinstance(found, str) and matches(found) is not None


def _contains(part: Any) -> Test:
    return lambda found: (
        any(_same(item, part) for item in found)
        if isinstance(found, list)
        else isinstance(found, str) and isinstance(part, str) and part in found
    )


def _exists(wanted: Any) -> Test:
    if not isinstance(wanted, bool):
        raise TypeError("true or false is needed")
    return lambda _: wanted


_OPERATORS: Final[Mapping[str, Callable[[Any], Test]]] = {
    "eq": _equal,
    "ne": lambda expected: lambda found: not _same(found, expected),
    "in": _one_of,
    "not_in": _none_of,
    "gt": _ordered(lambda found, bound: bool(found > bound)),
    "ge": _ordered(lambda found, bound: bool(found >= bound)),
    "lt": _ordered(lambda found, bound: bool(found < bound)),
    "le": _ordered(lambda found, bound: bool(found <= bound)),
    "regex": _found_by,
    "prefix": _text_test(str.startswith),
    "suffix": _text_test(str.endswith),
    "glob": _globbed,
    "contains": _contains,
    "exists": _exists,
}


def compile_extra(
    template: Mapping[str, Any] | None, attributes: Mapping[str, Callable[[E], Any]]
) -> Callable[[E, Any], dict[str, Any]] | None:
    """Return a function that builds an asset event's `extra`; None if there is no template.

    The template maps each name in the `extra` to a path or to `{"const": …}`. A missing field becomes None.

    Raises:
        DagError: The template has another form.
    """
    if template is None:
        return None
    if not isinstance(template, Mapping):
        raise DagError(f"extra must map names to paths, not be a {type(template).__name__}")
    fields: list[tuple[str, Getter[E]]] = []
    for name, source in template.items():
        if isinstance(source, Mapping):
            if set(source) != {"const"}:
                raise DagError(f'extra[{name!r}] must be a path or {{"const": …}}, not {source!r}')
            fields.append((name, _constant(source["const"])))
        else:
            fields.append((name, compile_path(source, attributes)))

    def build(message: E, value: Any) -> dict[str, Any]:
        extra = {name: get(message, value) for name, get in fields}
        for name, found in extra.items():
            if found is MISSING:
                extra[name] = None
        return extra

    return build


def _constant(value: Any) -> Getter[Any]:
    return lambda _message, _value: value
