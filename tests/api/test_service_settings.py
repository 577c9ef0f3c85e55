"""`/config` shows each setting from a process that uses it, and never shows a secret."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from tests.api.conftest import Api
from triggerer.config import Settings, load_settings
from triggerer.observability.redaction import forget_secrets
from triggerer.operations.reading.configuration import SettingView, list_settings
from triggerer.operations.reading.service_settings import merged, publish_settings
from triggerer.processes.instance_ids import this_process
from triggerer.store.schema.models import ProcessSettings
from triggerer.store.streams.leases import register_instance
from triggerer.store.streams.process_settings import (
    SettingsOfProcess,
    published_settings,
)

CANARIES = """
[database]
url = "postgresql://me:canary-1@db/x?sslpassword=canary-2"
[executor]
workers = 7
[spark]
remote = "sc://server:15002/;token=canary-3"
[spark.conf]
"spark.hadoop.fs.s3a.secret.key" = "canary-4"
[api]
port = 8123
[api.oidc]
client_secret = "canary-5"
[api.hooks.ci]
asset = "orders"
secret = "canary-6"
[connections.kafka]
bootstrap_servers = "b:9092"
sasl_plain_password = "canary-7"
headers = { Authorization = "Bearer canary-8" }
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a secret in every place that may have one."""
    file = tmp_path / "triggerer.toml"
    file.write_text(CANARIES)
    found = load_settings(file, environ={"TRIGGERER__CORE__HOME": str(tmp_path)})
    # Forget the secrets that `load_settings` has just registered, as if another process had loaded them. `/config` must
    # then recognise each secret by its place in the settings.
    forget_secrets()
    return found


def row(key: str, value: object, *, section: str = "executor") -> dict[str, object]:
    return {"section": section, "key": key, "value": value, "source": "f:1"}


def test_a_duration_names_its_unit(settings: Settings) -> None:
    units = {(one.section, one.key): one.unit for one in list_settings(settings)}
    assert units["executor", "lease_duration"] == units["triggerer", "stall_threshold"] == "seconds"
    assert units["executor", "workers"] is None


def test_a_setting_is_shown_as_the_part_has_it_that_uses_it() -> None:
    rows = [row("workers", 2), row("host", "a", section="metrics")]
    api = SettingsOfProcess("h:1", frozenset({"api"}), rows)
    rows = [row("workers", 8), row("host", "b", section="metrics")]
    executor = SettingsOfProcess("h:2", frozenset({"executor"}), rows)
    other = SettingsOfProcess("h:3", frozenset({"executor"}), [row("workers", 9)])
    workers, host = merged([api, executor, other])
    assert (workers.value, workers.process) == (8, "h:2")
    assert [(one.process, one.parts, one.value) for one in workers.others] == [
        ("h:3", ["executor"], 9)
    ]
    assert (host.value, host.process) == ("a", "h:1")
    assert [(one.process, one.value) for one in host.others] == [("h:2", "b")]
    # If no executor runs, the API's own value is better than none.
    (workers, _) = merged([api])
    assert (workers.value, workers.process) == (2, "h:1")


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ("notify", "scheduler"),
        ("connections.kafka", "triggerer"),
        ("connections.kafka", "dag-processor"),
    ],
)
def test_a_setting_that_the_api_does_not_use_is_not_shown_as_the_api_has_it(
    section: str, part: str
) -> None:
    api = SettingsOfProcess("h:1", frozenset({"api"}), [row("k", "a", section=section)])
    user = SettingsOfProcess("h:2", frozenset({part}), [row("k", "b", section=section)])
    (shown,) = merged([api, user])
    assert (shown.value, shown.process, shown.others) == ("b", "h:2", [])


async def test_the_settings_of_the_executor_are_shown_with_their_places_and_without_secrets(
    api: Api, settings: Settings
) -> None:
    async with api.database.transaction() as session:
        await publish_settings(session, settings)
        await register_instance(session, f"{this_process()}:a", kind="executor")
        await session.execute(update(ProcessSettings).values(process="far:7"))
        await register_instance(session, "far:7:a", kind="executor")
    async with api.client() as client:
        answer = await client.get("/api/v1/config")
        own = (
            await Api(replace(api.context, settings=settings), api.tokens)
            .client()
            .get("/api/v1/config")
        )
    found = {(one["section"], one["key"]): one for one in answer.json()["items"]}
    workers = found["executor", "workers"]
    assert (workers["value"], workers["process"], workers["others"]) == (7, "far:7", [])
    assert workers["source"].endswith("triggerer.toml:5")
    port = found["api", "port"]
    assert (port["value"], port["source"], port["process"]) == (8080, "default", this_process())
    url = found["database", "url"]
    assert [one["parts"] for one in url["others"]] == [["executor"]]
    assert "db/x" in url["others"][0]["value"]
    assert found["connections.kafka", "bootstrap_servers"]["value"] == "b:9092"
    assert b"canary" not in answer.content + own.content


async def test_the_settings_of_a_process_go_a_day_after_its_registration(
    api: Api, settings: Settings
) -> None:
    async with api.database.transaction() as session:
        await publish_settings(session, settings)
        (stored,) = await session.scalars(select(ProcessSettings))
        assert "canary" not in json.dumps(stored.settings)
        assert [SettingView(**one) for one in stored.settings] == list_settings(settings)
        assert await published_settings(session) == []
        past = stored.saved_at - timedelta(days=2)
        await session.execute(update(ProcessSettings).values(process="h:1", saved_at=past))
        await publish_settings(session, settings)
        assert list(await session.scalars(select(ProcessSettings.process))) == [this_process()]
