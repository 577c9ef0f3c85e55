"""Python applications in cluster mode on a real YARN: found by tag, followed, stopped, followed again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.acceptance.commands import ENVIRONMENT
from tests.acceptance.standalone import Standalone
from tests.clusters.scene import APPLICATIONS, Scene, serving_application
from tests.services.availability import skip_or_fail
from tests.services.clusters.yarn import Yarn, open_yarn
from tests.services.process import ServiceUnavailable
from triggerer.config import SparkSettings
from triggerer.domain.attempt_states import AttemptState
from triggerer.worker.launchers import Ended, Handle, Running
from triggerer.worker.launchers.yarn import YarnLauncher

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

_MEMORY: Final = "600m"


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    try:
        with open_yarn() as running:
            yield running
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


def _conf(yarn: Yarn, folder: Path) -> dict[str, str]:
    return {
        "spark.driver.memory": _MEMORY,
        "spark.executor.memory": _MEMORY,
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.instances": "1",
        "spark.pyspark.python": sys.executable,
        # Nothing is copied: the containers are on this machine.
        "spark.yarn.jars": f"local:{yarn.spark_home}/jars/*",
        "spark.yarn.stagingDir": f"file://{folder / 'staging'}",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.yarn.am.waitTime": "120s",
    }


@pytest.fixture(scope="module")
def service(yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENT, "YARN_CONF_DIR", str(yarn.folder))
        with serving_application(
            folder, APPLICATIONS / "steps.py", master="yarn", conf=_conf(yarn, folder)
        ) as running:
            yield running


@pytest.fixture
def scene(service: Standalone, yarn: Yarn, tmp_path: Path) -> Iterator[Scene]:
    one = Scene(service, tmp_path / "marks")
    yield one
    if one.marks.exists():
        one.tell("finish")
    one.until(lambda: not _apps(yarn, "states=NEW,SUBMITTED,ACCEPTED,RUNNING"), "no application")


@pytest.fixture
def launcher(yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> YarnLauncher:
    monkeypatch.setenv("YARN_CONF_DIR", str(yarn.folder))
    return YarnLauncher(SparkSettings(master="yarn"))


def test_an_application_is_found_by_its_tag_and_followed_to_its_success(
    scene: Scene, yarn: Yarn, launcher: YarnLauncher
) -> None:
    scene.trigger()
    scene.until_works()
    launch = scene.until_launch(state="running", reason="running")
    assert (launch["launcher"], launch["place"]) == ("yarn", yarn.url)
    (app,) = _apps(yarn, f"applicationTags={launch['tag']}")
    assert app["id"] == launch["external_id"]
    assert app["name"] == f"steps.work {launch['tag']}"
    found = launcher.find(launch["tag"])
    assert isinstance(found, Running)
    assert found.handle.external_id == app["id"]
    scene.tell("finish")
    assert scene.until_state("success")["error"] is None
    ended = launcher.find(launch["tag"])
    assert isinstance(ended, Ended)
    assert ended.state is AttemptState.SUCCESS
    (mark,) = scene.drivers()
    assert len(mark.read_text()) == 32


def test_a_cancelled_run_stops_its_application_and_waits_for_its_end(
    scene: Scene, yarn: Yarn, launcher: YarnLauncher
) -> None:
    scene.trigger()
    scene.until_works()
    launch = scene.launch()
    scene.service.run("runs", "cancel", "steps", "--last")
    scene.until_state("cancelled")
    scene.until_stopped()
    scene.until(scene.works_no_longer, "its containers have ended", within_s=20)
    stopped = launcher.stop(Handle(launch["tag"]))
    assert isinstance(stopped, Ended)
    assert stopped.state is AttemptState.KILLED


def test_the_failure_of_an_application_is_the_runs_error(scene: Scene) -> None:
    scene.trigger()
    scene.until_works()
    scene.tell("fail")
    run = scene.until_state("failed")
    assert f"the application {scene.launch()['external_id']} failed: " in run["error"]
    assert len(scene.drivers()) == 1


def test_a_service_that_was_killed_follows_the_same_application(scene: Scene) -> None:
    scene.trigger()
    scene.until_works()
    scene.end_service("kill")
    scene.until_works()
    scene.service.start()
    scene.until(lambda: len(scene.attempts()) == 2, "a second attempt")
    scene.until_works()
    scene.tell("finish")
    scene.until_state("success")
    assert len(scene.drivers()) == 1
    assert scene.attempts() == [(1, "lost"), (2, "success")]


def test_yarn_starts_no_second_driver_for_one_that_was_killed(scene: Scene, yarn: Yarn) -> None:
    scene.trigger()
    scene.until_works()
    for process in psutil.Process(yarn.node.pid).children(recursive=True):
        if "org.apache.spark.deploy.yarn.ApplicationMaster" in process.cmdline():
            os.kill(process.pid, signal.SIGKILL)
    run = scene.until_state("failed")
    assert f"the application {scene.launch()['external_id']} failed: " in run["error"]
    assert len(scene.drivers()) == 1


def _apps(yarn: Yarn, query: str) -> list[dict[str, Any]]:
    return list((yarn.ask(f"apps?{query}")["apps"] or {}).get("app") or [])
