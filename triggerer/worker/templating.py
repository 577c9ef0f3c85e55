"""Renders the templates in the arguments of tasks with sandboxed Jinja. Unknown names are errors.

Jinja is imported with the first template, because most runs have no template.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from triggerer.errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Environment


def check_templates(value: Any, what: str) -> None:
    """Check the template syntax of every text in an argument.

    Raises:
        TemplateError: A text is malformed. The message names `what` and the line.
    """
    from jinja2 import TemplateSyntaxError

    for text in _texts(value):
        try:
            _environment().parse(text)
        except TemplateSyntaxError as error:
            raise TemplateError(f"{what}, line {error.lineno}: {error.message}") from error


def render(value: Any, context: Mapping[str, Any], what: str) -> Any:
    """Render an argument: a string, or each string in its lists, tuples and values of dictionaries.

    Named tuples and other objects are returned unchanged.

    Args:
        context: The names that templates can use.
    Raises:
        TemplateError: A text cannot be rendered. The message names `what` and the line, and an undefined name if that
            is the cause.
    """
    match value:
        case str():
            return _render_text(value, context, what)
        case dict():
            return {key: render(item, context, what) for key, item in value.items()}
        case list():
            return [render(item, context, what) for item in value]
        case tuple() if not hasattr(value, "_fields"):
            return tuple(render(item, context, what) for item in value)
        case _:
            return value


def date_names(logical_date: datetime | None) -> dict[str, str]:
    """Return `ds` and similar names; empty for a run without a logical date."""
    if logical_date is None:
        return {}
    return {name: form(logical_date) for name, form in _DATE_FORMS.items()}


_DATE_FORMS: Final[Mapping[str, Callable[[datetime], str]]] = {
    "ds": lambda at: at.strftime("%Y-%m-%d"),
    "ds_nodash": lambda at: at.strftime("%Y%m%d"),
    "ts": lambda at: at.isoformat(),
    "ts_nodash": lambda at: at.strftime("%Y%m%dT%H%M%S"),
    "ts_nodash_with_tz": lambda at: at.isoformat().replace("-", "").replace(":", ""),
}
"""Names and filters for instants, as in Airflow."""


@cache
def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters.update(_DATE_FORMS)
    return environment


def _render_text(text: str, context: Mapping[str, Any], what: str) -> str:
    from jinja2 import TemplateRuntimeError, TemplateSyntaxError, UndefinedError

    try:
        return _environment().from_string(text).render(context)
    except TemplateSyntaxError as error:
        raise TemplateError(f"{what}, line {error.lineno}: {error.message}") from error
    except UndefinedError as error:
        names = ", ".join(sorted(context))
        raise TemplateError(
            f"{what}, line {_line(error)}: {error.message}", hint=f"templates know {names}"
        ) from error
    except TemplateRuntimeError as error:
        raise TemplateError(f"{what}, line {_line(error)}: {error.message}") from error
    except Exception as error:
        # The objects that a template uses may raise anything.
        reason = f"{type(error).__name__}: {error}"
        raise TemplateError(f"{what}, line {_line(error)}: {reason}") from error


def _line(error: BaseException) -> int | str:
    """Return the template line that raised the error. Jinja writes it into the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return (lines[-1] if lines else None) or "?"


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)
