"""Reads JSON values, and checks them against their schema."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from triggerer.pluginkit.schemas.registry import Reader, RegisteredSchema


def make_reader(schema: RegisteredSchema) -> Reader:
    """Return a reader of values of this schema.

    Raises:
        ValueError: The schema is no JSON Schema.
    """
    from jsonschema import SchemaError
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT7

    try:
        own = json.loads(schema.text)
        kind = validator_for(own)
        kind.check_schema(own)
        resources = [
            (name, Resource.from_contents(json.loads(referred.text), default_specification=DRAFT7))
            for name, referred in _all_of(schema)
        ]
    except (SchemaError, TypeError, ValueError) as error:
        raise ValueError(f"no JSON Schema: {error}") from error
    validator = kind(own, registry=Registry().with_resources(resources))

    def read(data: bytes) -> Any:
        value = orjson.loads(data)
        try:
            validator.validate(value)
        except ValidationError as error:
            raise ValueError(f"no value of its JSON Schema: {error.message}") from error
        except Unresolvable as error:
            raise ValueError(f"no JSON Schema: it refers to {error.ref!r}") from error
        except re.error as error:
            # `check_schema` finds such a pattern only in the schema itself, and not in keys of draft 4.
            raise ValueError(
                f"no JSON Schema: Python cannot compile its pattern {error.pattern!r}: {error}"
            ) from error
        except RecursionError as error:
            raise ValueError(f"too deep for its JSON Schema: {error}") from error
        return value

    return read


def _all_of(schema: RegisteredSchema) -> list[tuple[str, RegisteredSchema]]:
    found = []
    for name, referred in schema.references.items():
        found += [*_all_of(referred), (name, referred)]
    return found
