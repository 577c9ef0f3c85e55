"""A service copies its logs to a bucket, and the commands read the copies once the logs are gone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.commands import run_command
from tests.acceptance.instance import Instance, wait_until
from tests.services.storage.log_bucket import LogBucket, open_log_bucket

pytestmark = pytest.mark.full

DAG = """
from triggerer import DAG, task

with DAG("prints"):
    @task
    def prints():
        print("hello from the run")
    prints()
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogBucket]:
    with open_log_bucket(monkeypatch) as bucket:
        yield bucket


def test_a_log_whose_machine_is_gone_is_printed_from_its_copy(
    bucket: LogBucket, tmp_path: Path
) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "prints.py").write_text(DAG)
    home = tmp_path / "home"
    instance = Instance(
        home,
        dags_folder=dags,
        database_url=f"sqlite:///{home / 'triggerer.db'}",
        bootstrap="127.0.0.1:1",
        settings=f'[logs]\nship = "{bucket.url}"\n',
    )
    instance.start()
    try:
        wait_until(
            lambda: '"started"' in instance.tail(),
            within_s=60,
            what="the service runs",
            of=instance,
        )
        instance.cli("dags", "trigger", "prints")
        wait_until(lambda: bucket.list() != [], within_s=60, what="the copy", of=instance)
        assert instance.stop() == 0
    finally:
        instance.kill()
    written = {path.read_text() for path in (home / "logs").rglob("*.log")}
    assert {bucket.read(key).decode() for key in bucket.list()} == written
    assert list((home / "unshipped").iterdir()) == []
    # By default, the SDK logs where each new client found its credentials and its endpoint.
    assert "botocore" not in instance.log.read_text()

    (key,) = bucket.list()
    config = ("--config", str(instance.config))
    shown = run_command("runs", "show", "prints", "--last", *config, environment=os.environ)
    assert f"s3://{bucket.name}/{key}" in shown.stdout
    shutil.rmtree(home / "logs")
    printed = run_command("runs", "logs", "prints", "--last", *config, environment=os.environ)
    assert ({printed.stdout}, printed.stderr) == (written, "")
    followed = run_command(
        "runs", "logs", "prints", "--last", "--follow", *config, environment=os.environ
    )
    assert ({followed.stdout}, followed.stderr) == (written, "")
    as_json = run_command(
        "runs", "logs", "prints", "--last", "--json", *config, environment=os.environ
    )
    assert {json.loads(as_json.stdout)["log"]} == written

    instance.config.write_text(instance.config.read_text().replace(bucket.url, "s3://nowhere-here"))
    refused = run_command("runs", "logs", "prints", "--last", *config, environment=os.environ)
    assert refused.returncode == 1
    assert "has no log" in refused.stderr
