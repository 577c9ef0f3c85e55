"""Calls a trigger's `describe_delivery`, and checks the types in the result."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter, ValidationError

from triggerer.abc import BaseEventTrigger
from triggerer.domain.watchers.guarantees import DeliveryFacts, Finding
from triggerer.errors import PluginError, TriggererError
from triggerer.observability.error_texts import error_text
from triggerer.streams.cancellation import plugin_code

_HINT: Final = "the plugin's author has to fix that; no DAG file is to blame"


async def facts_of(trigger: BaseEventTrigger, *, ask: bool) -> DeliveryFacts:
    """Return a trigger's `DeliveryFacts`, with checked types.

    Args:
        ask: True: the trigger may also ask its source, such as a broker.
    Raises:
        TriggererError: The trigger's own error: its settings are wrong, or its source refuses or does not answer.
        PluginError: The trigger raised another error. Or its result, or a field of the result, has
            a wrong type.
    """
    kind = type(trigger)
    what = f"describe_delivery() of {kind.__module__}.{kind.__qualname__}"
    try:
        with plugin_code(what):
            found: Any = await trigger.describe_delivery(ask=ask)
    except TriggererError:
        raise
    except Exception as error:
        raise raised_by(what, error) from error
    if not isinstance(found, DeliveryFacts):
        said = f"{what} returned {type(found).__qualname__}, not triggerer.abc.DeliveryFacts"
        raise PluginError(said, hint=_HINT)
    if wrong := [*_wrong(found)] or [
        text
        for place, one in enumerate(found.findings)
        for text in _wrong(one, f"findings[{place}].")
    ]:
        raise PluginError(f"{what} returned DeliveryFacts in which {'; '.join(wrong)}", hint=_HINT)
    return found


def raised_by(what: str, error: Exception) -> PluginError:
    """Return the error to raise when a plugin's hook has raised an error that is no `TriggererError`."""
    return PluginError(f"{what} raised {error_text(error)}", hint=_HINT)


def _wrong(facts: DeliveryFacts | Finding, place: str = "") -> Iterator[str]:
    """Yield a text for each field whose type is not the declared one."""
    kind: Any = type(facts)
    for name, check in _checks(kind).items():
        value = getattr(facts, name)
        try:
            check.validate_python(value, strict=True)
        except ValidationError:
            yield f"{place}{name} is {value!r} instead of {kind.__annotations__[name]}"


@cache
def _checks(kind: Any) -> dict[str, TypeAdapter[Any]]:
    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind).items()}
