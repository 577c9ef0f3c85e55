"""`[notify]`: wrong values are refused, and no URL is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from triggerer.config import Settings, load_settings
from triggerer.domain.dags import DAG
from triggerer.errors import ConfigurationError, DagError
from triggerer.notifications import apprise_library, notify
from triggerer.notifications.apprise_library import require_apprise
from triggerer.observability.redaction import redact_text
from triggerer.operations.reading.configuration import list_settings

SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


def settings_of(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "t.toml"
    file.write_text(f"[notify]\n{text}\n")
    return load_settings(file, {"MAIL": "mailto://me:hunter22@mail.example"})


def shown(settings: Settings) -> dict[str, object]:
    return {one.key: one.value for one in list_settings(settings) if one.section == "notify"}


@contextmanager
def refused() -> Iterator[list[str]]:
    said: list[str] = []
    with pytest.raises(ConfigurationError) as raised:
        yield said
    said.append(str(raised.value))


def test_all_events_are_told_by_default_and_to_nobody() -> None:
    notify_settings = load_settings(environ={}).notify
    assert notify_settings.urls == ()
    assert notify_settings.on == ("watcher_failing", "parked", "run_failed")


def test_an_unknown_event_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with refused() as said:
        settings_of(tmp_path, 'on = ["run_faild"]')
    assert said[0].endswith("(did you mean 'run_failed'?), not ['run_faild']")


def test_the_settings_show_references_and_schemes_only(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f'urls = ["{SLACK}", "env:MAIL", "{SLACK}x"]')
    assert shown(settings)["urls"] == ["slack://***", "env:MAIL", "slack://***"]
    assert "TIiajk" not in json.dumps([asdict(one) for one in list_settings(settings)], default=str)
    assert "TIiajk" not in repr(settings)


def test_a_wrong_value_is_refused_without_the_urls(tmp_path: Path) -> None:
    for text in (f'urls = ["{SLACK}", 5]', f'urls = {{a = "{SLACK}"}}'):
        with refused() as said:
            settings_of(tmp_path, text)
        assert "TIiajk" not in said[0]


def test_urls_are_resolved_by_names_and_then_hidden_in_every_line(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f'urls = ["{SLACK}", "env:MAIL"]')
    assert settings.resolve_targets() == {
        "slack://***": SLACK,
        "env:MAIL": "mailto://me:hunter22@mail.example",
    }
    assert redact_text(f"cannot reach {SLACK} hunter22") == "cannot reach *** ***"


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    with refused() as said:
        settings_of(tmp_path, 'urls = "env:SLACK"').resolve_targets()
    assert "[notify] urls refers to the environment variable SLACK" in said[0]


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apprise_library.importlib.util, "find_spec", lambda name: None)
    with refused() as said:
        require_apprise()
    assert "pip install 'triggerer[notify]'" in said[0]


def test_a_dag_takes_notify_as_its_callback() -> None:
    DAG("sales", on_failure_callback=notify(SLACK), on_success_callback=[notify("env:MAIL")])


@pytest.mark.parametrize("urls", [(), ("secret-without-scheme",), (5,)])
def test_a_dag_file_with_a_wrong_target_is_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(DagError) as raised:
        notify(*urls)
    assert "secret" not in str(raised.value)
