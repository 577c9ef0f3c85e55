"""Sessions over Spark Connect, against the server that PySpark brings, on loopback."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.worker.spark.processes import run_python, start_python
from triggerer.worker.spark.sessions.classic import find_installation
from triggerer.worker.spark.sessions.reachability import Endpoint, is_reachable

pytestmark = pytest.mark.timeout(300)


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def connect_server(
    home: Path, port: int, *, token: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    found = find_installation(home)
    environment = {
        "JAVA_HOME": str(found.java_home),
        "SPARK_HOME": str(found.spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        **({} if token is None else {"spark.connect.authenticate.token": token}),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": home / "connect",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"
        f" -XX:SharedArchiveFile='{found.archive.path}'",
    }
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [found.spark_home / "bin" / "spark-submit", "--class", server, "--master", "local[2]"]
    with subprocess.Popen(
        [*command, *options, "spark-internal"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    ) as process:
        try:
            deadline = time.monotonic() + 120
            while not is_reachable(Endpoint("127.0.0.1", port)):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)  # the server sends no notice when it listens
            yield process
        finally:
            process.kill()


def test_a_connect_session_works_like_a_classic_one_and_notices_its_servers_end(
    home: Path, tmp_path: Path
) -> None:
    port = free_port()
    with connect_server(home, port) as server:
        shown = run_python(
            "import signal\n"
            f"settings = SparkSettings(mode='connect', remote='sc://127.0.0.1:{port}',\n"
            "                         conf={'spark.sql.shuffle.partitions': '3'})\n"
            "session = open_it(settings)\n"
            "warm_up(session)\n"
            "events = [{'id': n, 'extra': {'value': {'a': n}}} for n in range(3)]\n"
            "print(to_dataframe(session, events).selectExpr('sum(extra.value.a)').first()[0])\n"
            "print(to_dataframe(session, []).count())\n"
            "print(session.conf.get('spark.sql.shuffle.partitions'), is_alive(session))\n"
            "close_session(session)\n"
            "print(is_alive(session))\n"
            "session = open_it(settings)\n"
            f"os.kill({server.pid}, signal.SIGKILL)\n"
            "while is_alive(session): time.sleep(0.05)\n"
            "print(how_it_ended(session))",
            tmp_path,
        )
    # PySpark's hook at exit would send requests to the dead server until its retries are over. Our own hook prevents
    # this.
    assert shown.splitlines() == [
        "3",
        "0",
        "3 True",
        "False",
        "the Spark Connect server no longer knows this session",
    ]


@pytest.mark.full
def test_errors_are_a_sentence_and_progress_is_told(home: Path, tmp_path: Path) -> None:
    port = free_port()
    with connect_server(home, port, token="right"):
        code = (
            "import warnings; warnings.simplefilter('ignore')\n"
            "from triggerer.worker.failures import explain\n"
            "from triggerer.worker.spark.explanations import explain_spark\n"
            "from triggerer.worker.spark.progress import ProgressWatch\n"
            f"remote = 'sc://localhost:{port}/;token='\n"
            "try: open_it(SparkSettings(remote=remote + 'wrong'))\n"
            "except SubmitFailed as error: print(explain_spark(error), '|', 'wrong' in str(error))\n"
            "session = open_it(SparkSettings(remote=remote + 'right'))\n"
            "seen = []\n"
            "watch = ProgressWatch(seen.append, every_s=0.1)\n"
            "watch.follow(session)\n"
            "for source in ('kafka', 'nosuch'):\n"
            "    try: session.read.format(source).load().collect()\n"
            "    except Exception as error:\n"
            "        text = explain(error, home)\n"
            "        print(source, explain_spark(error).split(':')[0], '|', '\\tat ' in text or 'stacktrace' in text)\n"
            "session.range(0, 30_000_000, 1, 8).selectExpr('sum(sqrt(id))').collect()\n"
            "time.sleep(0.3)\n"
            "print('tasks', seen[-1].total.tasks_done > 0, seen[-1].total.rows_read)\n"
            "close_session(session)"
        )
        # PySpark logs each refused query to standard error.
        with start_python(code, tmp_path) as process:
            shown, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]
    assert shown.splitlines() == [
        "the Spark Connect server refused the token: correct `;token=…` in [spark] remote | False",
        "kafka Spark has no `kafka` | False",
        "nosuch Spark knows no data source `nosuch` | False",
        "tasks True None",
    ]


def test_an_absent_server_is_named_at_once_and_its_token_is_not(tmp_path: Path) -> None:
    shown = run_python(
        f"remote = 'sc://127.0.0.1:{free_port()}/;token=hidden'\n"
        "try: open_it(SparkSettings(mode='connect', remote=remote))\n"
        "except SubmitFailed as error: print(error)",
        tmp_path,
    )
    assert "does not answer" in shown
    assert "hidden" not in shown
