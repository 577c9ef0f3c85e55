"""`triggerer demo --broker`: a small job on each broker other than the demo's own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.commands import ENVIRONMENT
from tests.services.availability import service
from tests.services.elasticmq import open_elasticmq
from tests.services.pubsub import open_pubsub
from tests.services.servicebus.service import open_servicebus


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "triggerer", "demo", *arguments],
        cwd=folder,
        env={**ENVIRONMENT, "PUBSUB_EMULATOR_HOST": "", "SERVICEBUS_CONNECTION_STRING": ""},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )


def test_the_trial_on_sqs_runs_on_the_server_that_is_named(tmp_path: Path) -> None:
    with service(open_elasticmq()) as server:
        done = demo(tmp_path, "--broker", "sqs", "--endpoint", server.endpoint)
    assert done.returncode == 0, done.stdout
    assert "All 6 counts agree." in done.stdout


@pytest.mark.soak
def test_the_trial_on_sqs_serves_itself_where_no_server_is_named(tmp_path: Path) -> None:
    done = demo(tmp_path, "--broker", "sqs")
    assert done.returncode == 0, done.stdout
    assert "All 6 counts agree." in done.stdout


def test_the_trial_on_pubsub_runs_on_the_emulator_that_is_named(tmp_path: Path) -> None:
    with service(open_pubsub()) as server:
        done = demo(tmp_path, "--broker", "pubsub", "--endpoint", server.host)
    assert done.returncode == 0, done.stdout
    assert "All 5 counts agree." in done.stdout


def test_the_trial_on_servicebus_keeps_the_key_out_of_its_folder(tmp_path: Path) -> None:
    with service(open_servicebus()) as server:
        server.create("triggerer-demo-orders")
        done = demo(
            tmp_path, "--broker", "servicebus", "--endpoint", server.connection_string,
            "--home", str(tmp_path / "home"),
        )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "All 5 counts agree." in done.stdout
    (key,) = re.findall(r"SharedAccessKey=([^;]+)", server.connection_string)
    for file in ("triggerer.toml", "service.log"):
        assert key not in (tmp_path / "home" / file).read_text()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--broker", "pubsub"), "gcloud beta emulators pubsub start"),
        (("--broker", "servicebus"), "--endpoint localhost"),
        (("--broker", "servicebus", "--endpoint", "localhost:1"), "has it a queue"),
        (("--broker", "rabbitmq"), "known: kafka, sqs, pubsub, servicebus"),
        (("--endpoint", "http://localhost:1"), "takes no --endpoint"),
        (("--broker", "sqs", "--endpoint", "http://127.0.0.1:1"), "running there?"),
        (("--broker", "sqs", "--endpoint", "127.0.0.1:1"), "A URL is needed"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, arguments: tuple[str, ...], hint: str) -> None:
    done = demo(tmp_path, *arguments)
    assert done.returncode == 1
    assert hint in " ".join(done.stdout.split())
