"""Checks the values of a section.

An error names the key and where its value was set: a file and line, an environment variable or a command-line option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from triggerer.config.sources import RawValue
from triggerer.errors import ConfigurationError
from triggerer.nearest import ending
from triggerer.observability.target_names import redact_setting


def read_slots(name: str, given: RawValue) -> RawValue:
    """Return the number of a pool's slots.

    Raises:
        ConfigurationError: The value is not an integer of at least 1.
    """
    value = given.value
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or value < 1:
        raise ConfigurationError(
            f"{given.source}: pools.{name} must be a number of slots, 1 or more, not {given.value!r}"
        )
    return RawValue(value, given.source)


def build_section(
    name: str, kind: type[Any], given: Mapping[str, RawValue], sources: dict[tuple[str, ...], str]
) -> Any:
    """Return a section with its values or defaults. The origin of each value is added to `sources`.

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
        # The defaults need no check, and building pydantic's validator takes time.
        return kind()
    try:
        return TypeAdapter(kind).validate_python({key: item.value for key, item in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        shown = redact_setting(name, key, first["input"])
        raise ConfigurationError(
            f"{given[key].source}: [{name}] {key}: {_expected(first)}, not {shown!r}"
        ) from error


def _expected(error: ErrorDetails) -> str:
    """Return pydantic's message in words for the author of a TOML file."""
    match error["type"]:
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "string_pattern_mismatch":
            choices = error["ctx"]["pattern"].strip("^()$").split("|")
            return f"it must be one of {', '.join(choices)}"
        case "int_parsing" | "int_type" | "int_from_float":
            return "it must be a whole number"
        case "time_delta_parsing" | "time_delta_type":
            return "it must be a number of seconds"
        case "greater_than" | "greater_than_equal" as kind:
            bound = next(iter(error["ctx"].values()))
            # The only bound of a duration is zero, which pydantic shows as the text of a timedelta.
            number = 0 if isinstance(bound, str) else bound
            return f"it must be {'more than' if kind == 'greater_than' else 'at least'} {number}"
        case "less_than_equal":
            return f"it must be at most {error['ctx']['le']}"
        case "path_type":
            return "it must be the path of a file or folder"
        case _:
            return error["msg"]
