"""An application as a child process: its output, its end, and its error."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from triggerer.errors import RunFailed, SubmitFailed
from triggerer.worker.failures import TaskTimeout
from triggerer.worker.parallel.threads import thread_time_limit
from triggerer.worker.submit.child import run_child


def run(code: str, **environment: str) -> None:
    run_child([sys.executable, "-c", code], {**os.environ, **environment}, what="the application x")


def test_its_output_goes_to_standard_error_as_it_comes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run("import os, sys; print(os.environ['A']); print('two', file=sys.stderr)", A="one")
    assert sorted(capfd.readouterr().err.splitlines()) == ["one", "two"]


def test_the_error_is_the_last_line_of_its_traceback() -> None:
    with pytest.raises(RunFailed) as caught:
        run("raise ValueError('it is wrong')")
    assert str(caught.value) == "the application x ended with code 1: ValueError: it is wrong"


def test_the_error_is_found_before_the_long_stack_of_a_spark_connect_server() -> None:
    code = """
class Refused(Exception):
    pass
raise Refused("no table\\n\\nJVM stacktrace:" + 400 * "\\n\\tat org.apache.spark.X(Y.scala:1)")
"""
    with pytest.raises(RunFailed, match=r"ended with code 1: .*Refused: no table$"):
        run(code)


def test_an_application_that_was_killed_says_by_which_signal() -> None:
    with pytest.raises(RunFailed, match="was ended by SIGKILL"):
        run(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")


def test_a_command_that_does_not_exist_is_an_error_of_the_submission() -> None:
    with pytest.raises(SubmitFailed, match="cannot be started"):
        run_child(["/nowhere/spark-submit"], {}, what="the application x")


def test_it_is_stopped_when_the_task_is_interrupted() -> None:
    class Stop(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, interrupt)
    me = os.getpid()
    threading.Timer(0.5, os.kill, (me, signal.SIGUSR1)).start()
    began = time.monotonic()
    try:
        with pytest.raises(Stop):
            run("import time; time.sleep(60)")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - began < 30


def test_it_is_stopped_when_the_time_of_a_task_in_a_thread_is_up(tmp_path: Path) -> None:
    """A run with `max_parallel_tasks` above 1 executes its tasks in threads, which signals cannot interrupt."""
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    caught: list[BaseException] = []

    def work() -> None:
        try:
            with thread_time_limit(timedelta(seconds=10), lambda: None):
                run(code)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            caught.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(40)
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [TaskTimeout]
    assert not psutil.pid_exists(int(pid_file.read_text()))
