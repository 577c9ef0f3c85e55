"""The command, the settings and the environment with which an application is submitted."""

import os
import stat
from pathlib import Path

import pytest

from triggerer.config import SparkSettings
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.jvm.archive import ClassArchive
from triggerer.worker.spark.jvm.java import Java
from triggerer.worker.spark.sessions.classic import Installation
from triggerer.worker.submit.submission import (
    Submission,
    application_conf,
    application_path,
    submit_command,
    submit_environment,
)

SECRET = {"spark.hadoop.fs.s3a.secret.key": "geheim\\1"}


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    java = Java(Path("/java"), "17.0.1", has_vector_module=True, source="PATH")
    archive = ClassArchive(tmp_path, "key", needs_base=False)
    return Installation(Path("/spark"), java, Path("/java"), archive, tmp_path)


def submission(**values: object) -> Submission:
    fields = {"tag": "t-1", "name": "d.a t-1", "application": "/a.py", "arguments": ("-x", "1")}
    return Submission(**{**fields, "conf": {}, **values})  # type: ignore[arg-type]


def test_settings_go_into_a_file_for_this_user_and_no_secret_onto_the_command_line(
    installation: Installation,
) -> None:
    settings = SparkSettings(master="spark://h:7077")
    with submit_command(submission(conf=SECRET), settings, installation) as command:
        file = Path(command[command.index("--properties-file") + 1])
        assert file.read_text() == "spark.hadoop.fs.s3a.secret.key geheim\\\\1\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "geheim" not in " ".join(command)
    assert not file.exists()
    assert command[:7] == [
        "/spark/bin/spark-submit", "--master", "spark://h:7077", "--deploy-mode", "client",
        "--name", "d.a t-1",
    ]  # fmt: skip
    assert command[-3:] == ["/a.py", "-x", "1"]


def test_the_environment_tells_the_run_and_has_none_of_the_services_settings(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIGGERER__DATABASE__URL", "postgresql://u:geheim@h/d")
    monkeypatch.setenv("SPARK_REMOTE", "sc://h")
    one = submission(environment={"TRIGGERER_RUN_TOKEN": "abc"})
    variables = submit_environment(one, SparkSettings(), installation)
    assert variables["TRIGGERER_RUN_TOKEN"] == "abc"
    assert variables["SPARK_HOME"] == "/spark"
    assert variables["PATH"] == os.environ["PATH"]
    assert not {"TRIGGERER__DATABASE__URL", "SPARK_REMOTE"} & variables.keys()


def test_the_applications_settings_win_and_packages_are_added(installation: Installation) -> None:
    settings = SparkSettings(
        master="yarn", conf={"spark.executor.memory": "1g", "spark.jars.packages": "a:a:1"}
    )
    own = {"spark.executor.memory": "3g", "spark.submit.deployMode": "cluster"}
    conf = application_conf(settings, installation, own, ("b:b:2", "a:a:1"))
    assert conf["spark.executor.memory"] == "3g"
    assert conf["spark.jars.packages"] == "a:a:1,b:b:2"
    assert conf["spark.driver.defaultJavaOptions"] == "-XX:+ExitOnOutOfMemoryError"
    assert not {"spark.api.mode", "spark.master"} & conf.keys()
    assert submission(conf=conf).is_cluster_mode


def test_the_address_of_this_machine_is_not_for_a_driver_elsewhere(
    installation: Installation,
) -> None:
    here = {"spark.driver.host": "here", "spark.driver.bindAddress": "0.0.0.0"}
    settings = SparkSettings(master="yarn", conf=here)
    assert application_conf(settings, installation, {}, ())["spark.driver.host"] == "here"
    own = {"spark.submit.deployMode": "cluster", "spark.driver.bindAddress": "::"}
    conf = application_conf(settings, installation, own, ())
    assert "spark.driver.host" not in conf
    assert conf["spark.driver.bindAddress"] == "::"


def test_a_path_is_below_the_dags_folder_and_a_url_is_for_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "job.py").touch()
    assert application_path("job.py", tmp_path) == str(tmp_path / "job.py")
    assert application_path(str(tmp_path / "job.py"), Path("/other")) == str(tmp_path / "job.py")
    assert application_path("s3a://b/job.jar", tmp_path) == "s3a://b/job.jar"
    with pytest.raises(SubmitFailed, match="there is no application"):
        application_path("none.py", tmp_path)
    with pytest.raises(SubmitFailed, match="neither a Python file nor a jar"):
        application_path("job.scala", tmp_path)
