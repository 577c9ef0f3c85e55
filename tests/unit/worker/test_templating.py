"""Templates in the arguments of tasks."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from triggerer.errors import TemplateError
from triggerer.worker.templating import check_templates, date_names, render

WHAT = "argument 'sql' of task 't'"
AT = datetime(2026, 11, 24, 5, 6, 7, tzinfo=UTC)


def test_texts_are_rendered_also_inside_lists_tuples_and_mappings() -> None:
    value = {"a": ["{{ n }}", 7], "b": ("{{ n + 1 }}", None), "{{ key }}": "x\n"}
    assert render(value, {"n": 1}, WHAT) == {"a": ["1", 7], "b": ("2", None), "{{ key }}": "x\n"}


def test_the_names_of_a_logical_date_are_airflows() -> None:
    assert date_names(AT) == {
        "ds": "2026-11-24",
        "ds_nodash": "20261124",
        "ts": "2026-11-24T05:06:07+00:00",
        "ts_nodash": "20261124T050607",
        "ts_nodash_with_tz": "20261124T050607+0000",
    }
    assert date_names(None) == {}


def test_instants_have_filters_of_the_same_names() -> None:
    assert render("{{ at | ds }} {{ at | ts_nodash }}", {"at": AT}, WHAT) == (
        "2026-11-24 20261124T050607"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT 1\nFROM {{ tabel }}", "line 2: 'tabel' is undefined"),
        ("{{ params.lmit }}", "line 1: 'dict object' has no attribute 'lmit'"),
        ("\n\n{{ 1 / 0 }}", "line 3: ZeroDivisionError"),
        ("{% if %}", "line 1: "),
        ("{{ params.__class__.__mro__ }}", "line 1: access to attribute '__class__'"),
        ("{{ params.update({}) }}", "line 1: "),
    ],
)
def test_a_mistake_names_the_argument_the_line_and_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(text, {"params": {"limit": 3}}, WHAT)
    assert caught.value.message.startswith(f"{WHAT}, {reason}")


def test_an_undefined_name_is_told_with_those_that_there_are() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ x }}", {"ds": "", "params": {}}, WHAT)
    assert caught.value.hint == "templates know ds, params"


@pytest.mark.parametrize("value", ["{{", ["fine", "{% for %}"], {"k": ("{{ a b }}",)}])
def test_a_syntax_error_is_found_without_a_run(value: Any) -> None:
    with pytest.raises(TemplateError, match="argument 'sql' of task 't', line 1: "):
        check_templates(value, WHAT)


def test_a_well_formed_template_passes_whatever_it_names() -> None:
    check_templates(["{{ unknown.name }}", 7, None, "plain"], WHAT)


def test_jinja_is_imported_when_the_first_template_is_met() -> None:
    code = (
        "import sys, triggerer.worker.templating, triggerer.worker.attempt, triggerer.dag_processing.describing;"
        "sys.exit('jinja2' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
