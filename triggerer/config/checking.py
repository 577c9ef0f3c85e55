"""Checks values as they are written, and says what is wrong with them in the words of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from triggerer.config.sources import RawValue
from triggerer.errors import ConfigurationError
from triggerer.nearest import ending
from triggerer.observability.redaction import redact


def read_slots(name: str, given: RawValue) -> RawValue:
    """Return the number of a pool's slots.

    Raises:
        ConfigurationError: It is no number from 1.
    """
    value = given.value
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or value < 1:
        raise ConfigurationError(
            f"{given.source}: pools.{name} has to be a number of slots from 1, not {given.value!r}"
        )
    return RawValue(value, given.source)


def build_section(
    name: str, kind: type[Any], given: Mapping[str, RawValue], sources: dict[tuple[str, ...], str]
) -> Any:
    """Return a section with its values, or their defaults; `sources` is told where each comes from.

    Raises:
        ConfigurationError: A key is unknown, or a value is wrong.
    """
    known = [item.name for item in fields(kind)]
    for key, (_, source) in given.items():
        if key not in known:
            raise ConfigurationError(
                f"{source}: unknown key {key!r} in [{name}]{ending(key, known, cutoff=0)}"
            )
    sources |= {(name, key): given[key].source if key in given else "default" for key in known}
    if not given:
        # To have pydantic check nothing costs as much as to have it check something.
        return kind()
    try:
        return TypeAdapter(kind).validate_python({key: item.value for key, item in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        shown = redact(key, first["input"])
        raise ConfigurationError(
            f"{given[key].source}: [{name}] {key}: {_expected(first)}, not {shown!r}"
        ) from error


def _expected(error: ErrorDetails) -> str:
    """What pydantic says, in words for those who write a TOML file, not Python."""
    match error["type"]:
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "string_pattern_mismatch":
            choices = error["ctx"]["pattern"].strip("^()$").split("|")
            return f"it is one of {', '.join(choices)}"
        case "time_delta_parsing" | "time_delta_type":
            return "it is a number of seconds"
        case "greater_than" | "greater_than_equal" as kind:
            bound = next(iter(error["ctx"].values()))
            # Durations have no bound but zero, which pydantic gives as Python's text.
            number = 0 if isinstance(bound, str) else bound
            return f"it is {'more than' if kind == 'greater_than' else 'at least'} {number}"
        case _:
            return error["msg"]
