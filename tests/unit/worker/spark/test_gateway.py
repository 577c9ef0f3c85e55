import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from triggerer.errors import SubmitFailed
from triggerer.worker.spark.jvm import gateway
from triggerer.worker.spark.jvm.gateway import (
    CopiedOutput,
    how_it_ended,
    laid_over_environment,
    launch,
    on_command_line,
    reason_in,
)
from triggerer.worker.spark.sessions.classic import find_installation


def test_secrets_are_not_put_on_a_command_line_where_anybody_reads_them() -> None:
    conf = {
        "spark.hadoop.fs.s3a.secret.key": "x",
        "spark.hadoop.fs.s3a.access.key": "x",
        "spark.ssl.keyPassword": "x",
        "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net": "x",
        "spark.hadoop.fs.azure.sas.box.store.blob.core.windows.net": "x",
        "spark.executor.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=x",
        "spark.authenticate.secret": "x",
        "spark.master": "local",
        "spark.driver.memory": "1g",
    }
    assert on_command_line(conf).keys() == {"spark.master", "spark.driver.memory"}


def test_the_jvms_output_goes_to_standard_error_without_the_noise(
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = CopiedOutput()
    os.write(output.write_end, b"WARNING: Using incubator modules: jdk.incubator.vector\n")
    os.write(output.write_end, b"one\ntwo \xff")
    output.close_ours()
    output.wait_for_end(5)
    assert output.last_lines == ["one", "two �"]
    assert capfd.readouterr().err.startswith("one\ntwo ")


def test_variables_are_laid_over_the_environment_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIGGERER_A", "before")
    monkeypatch.delenv("TRIGGERER_B", raising=False)
    with laid_over_environment({"TRIGGERER_A": None, "TRIGGERER_B": "now"}):
        assert "TRIGGERER_A" not in os.environ
        assert os.environ["TRIGGERER_B"] == "now"
    assert os.environ["TRIGGERER_A"] == "before"
    assert "TRIGGERER_B" not in os.environ


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [
                "Picked up JAVA_TOOL_OPTIONS: -XX:+UseSerialGC",
                "Invalid maximum heap size: -Xmx3x",
                "Error: Could not create the Java Virtual Machine.",
                "Error: A fatal exception has occurred. Program will exit.",
            ],
            "Invalid maximum heap size: -Xmx3x",
        ),
        (
            [
                "26/11/21 09:15:31 WARN Utils: an error of no account",
                'Exception in thread "main" SparkException: Master must be local',
                "\tat org.apache.spark.Error(SparkSubmit.scala:1068)",
            ],
            'Exception in thread "main" SparkException: Master must be local',
        ),
        ([], ""),
    ],
)
def test_the_reason_is_found_among_what_a_jvm_printed(lines: list[str], reason: str) -> None:
    assert reason_in(lines) == reason


def test_a_jvm_that_was_killed_is_told_from_one_that_failed() -> None:
    with (
        subprocess.Popen(["sh", "-c", "kill -9 $$"]) as killed,
        subprocess.Popen(["sh", "-c", "exit 3"]) as failed,
    ):
        killed.wait()
        failed.wait()
    assert "memory" in str(how_it_ended(SimpleNamespace(proc=killed)))
    assert str(how_it_ended(SimpleNamespace(proc=failed))) == "Spark's JVM ended with code 3"
    assert how_it_ended(SimpleNamespace(proc=None)) is None


def test_without_bash_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(gateway.shutil, "which", lambda _name: None)
    with pytest.raises(SubmitFailed, match="there is no bash") as caught:
        launch({}, {})
    assert "apk add bash" in (caught.value.hint or "")


def test_without_pyspark_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(SubmitFailed, match="PySpark cannot be imported") as caught:
        find_installation(tmp_path)
    assert caught.value.hint == "pip install 'triggerer[spark]'"


def test_a_spark_home_without_spark_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SubmitFailed, match="is no Spark") as caught:
        find_installation(tmp_path)
    assert "SPARK_HOME" in (caught.value.hint or "")
