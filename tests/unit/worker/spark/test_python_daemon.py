"""The daemon of Spark's Python workers dies with our worker's lifeline, even while it is busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.services.process import lives
from triggerer.processes.lifelines import armed_lifelines, open_again
from triggerer.worker.spark.sessions import classic

# A worker that arms its lifeline, and starts the daemon by its bare name as the JVM does. The worker, the daemon and
# the daemon's child sleep until they are killed.
WORKER = """
import os, subprocess, sys, time
from triggerer.processes.lifelines import armed_lifelines, die_with_writer, open_again
os.setpgid(0, 0)
die_with_writer(open_again(f"/proc/self/fd/{sys.argv[1]}"))
variables = {
    "PYTHONPATH": os.pathsep.join(sys.argv[2:]), "TRIGGERER_LIFELINES": os.pathsep.join(armed_lifelines()),
}
daemon = [sys.executable, "-m", "triggerer_python_daemon", "pyspark.worker"]
subprocess.Popen(daemon, env=os.environ | variables)
time.sleep(600)
"""
DAEMON = """
import os, time
def manager():
    # As PySpark does.
    os.setpgid(0, 0)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(os.getpid(), os.getpgrp(), child, flush=True)
    time.sleep(600)
"""


@pytest.mark.timeout(120)
def test_a_daemon_that_is_stopped_and_its_workers_are_killed_though_they_are_a_group_of_their_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text(DAEMON)
    lifeline, end = os.pipe()
    group = 0
    paths = (str(classic.ON_PYTHON_PATH), str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(lifeline), *paths],
        pass_fds=[lifeline],
        stdout=subprocess.PIPE,
    ) as worker:
        try:
            os.close(lifeline)
            assert worker.stdout is not None
            daemon, group, child = map(int, worker.stdout.readline().split())
            assert group == daemon != worker.pid
            for one in (daemon, child, worker.pid):
                os.kill(one, signal.SIGSTOP)
            os.close(end)
            assert worker.wait(60) == -signal.SIGKILL
            deadline = time.monotonic() + 60
            while lives(daemon) or lives(child):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            worker.kill()
            if group:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


def test_where_nothing_is_to_be_died_with_the_daemon_is_pysparks() -> None:
    assert armed_lifelines() == ()
    with pytest.raises(OSError, match="No such file"):
        open_again("/proc/self/fd/99999")
