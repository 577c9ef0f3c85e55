"""Applications run on a real standalone cluster. The tests kill a driver, a worker, the master or the service."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import psutil
import pytest

from tests.acceptance.standalone import Standalone
from tests.clusters.scene import APPLICATIONS, Scene, serving_application
from tests.services.availability import skip_or_fail
from tests.services.clusters.spark_cluster import SparkCluster, open_spark_cluster
from tests.services.process import Daemon, ServiceUnavailable, is_alive
from tests.services.programs.java_compiler import compile_jar
from triggerer.config import SparkSettings
from triggerer.domain.attempt_states import AttemptState
from triggerer.worker.launchers import Absent, Ended, Handle, Running, Unknown
from triggerer.worker.launchers.standalone import StandaloneLauncher
from triggerer.worker.spark.sessions.classic import find_installation

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

_CONF: Final = {
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    # Stands for the address of the service's machine. A driver on another machine must not use it.
    "spark.driver.host": "192.0.2.1",
}
_DRIVER: Final = "org.apache.spark.deploy.worker.DriverWrapper"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    try:
        with open_spark_cluster(cores=3, memory="2g", workers=2, runs_drivers=True) as running:
            yield running
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


@pytest.fixture(scope="module")
def service(
    cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("home")
    jar = folder / "two steps.jar"
    try:
        compile_jar(
            APPLICATIONS / "Steps.java",
            jar,
            libraries=find_installation(folder).spark_home / "jars",
        )
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))
    conf = _CONF | cluster.ports
    with serving_application(
        folder, jar, master=cluster.url, conf=conf, main_class="Steps"
    ) as running:
        yield running


@pytest.fixture
def scene(service: Standalone, cluster: SparkCluster, tmp_path: Path) -> Iterator[Scene]:
    one = Scene(service, tmp_path / "marks")
    yield one
    if one.marks.exists():
        one.tell("finish")
    for daemon in (cluster.master, cluster.daemon, *cluster.others):
        if not daemon.running:
            daemon.kill()
            daemon.start()
    one.until(lambda: not cluster.state()["activedrivers"], "no driver is left")
    one.until(lambda: not cluster.state()["activeapps"], "no application is left")


@pytest.fixture
def launcher(cluster: SparkCluster) -> StandaloneLauncher:
    return StandaloneLauncher(SparkSettings(master=cluster.url, conf=cluster.ports))


def test_an_application_is_found_by_its_driver_and_followed_to_its_success(
    scene: Scene, cluster: SparkCluster, launcher: StandaloneLauncher
) -> None:
    scene.trigger()
    scene.until_works()
    launch = scene.until_launch(state="running", reason="running")
    tag, driver = launch["tag"], launch["external_id"]
    assert (launch["launcher"], launch["place"]) == ("standalone", cluster.url)
    (app,) = cluster.state()["activeapps"]
    assert app["name"] == f"steps.work {tag}"
    assert isinstance(launcher.find(tag, driver), Running)
    without_id = launcher.find(tag)
    assert isinstance(without_id, Unknown)
    assert app["id"] in without_id.reason
    scene.tell("finish")
    assert scene.until_state("success")["error"] is None
    assert scene.launch()["state"] == "success"
    ended = launcher.find(tag, driver)
    assert isinstance(ended, Ended)
    assert ended.state is AttemptState.SUCCESS
    scene.until(lambda: not cluster.state()["activeapps"], "the application has ended")
    without_id = launcher.find(tag)
    assert isinstance(without_id, Unknown)
    assert f"{app['id']} has ended" in without_id.reason
    assert launcher.find(f"{tag}-another") == Absent()
    (mark,) = scene.drivers()
    assert len(mark.read_text()) == 32


def test_a_cancelled_run_stops_its_driver_and_waits_for_its_end(
    scene: Scene, cluster: SparkCluster, launcher: StandaloneLauncher
) -> None:
    scene.trigger()
    scene.until_works()
    launch = scene.launch()
    scene.service.run("runs", "cancel", "steps", "--last")
    scene.until_state("cancelled")
    scene.until_stopped()
    assert scene.works_no_longer()
    assert cluster.state()["activedrivers"] == []
    ended = launcher.find(launch["tag"], launch["external_id"])
    assert isinstance(ended, Ended)
    assert ended.state is AttemptState.KILLED
    assert launcher.stop(Handle(launch["tag"], launch["external_id"])) == ended


def test_the_applications_own_error_is_the_runs_error(scene: Scene) -> None:
    scene.trigger()
    scene.until_works()
    scene.tell("fail")
    run = scene.until_state("failed")
    launch = scene.launch()
    name = f"the application {launch['external_id']} failed"
    assert f"{name}: java.lang.IllegalStateException: there are no orders today" in run["error"]
    assert launch["link"].endswith(f"/logPage/?driverId={launch['external_id']}&logType=stderr")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_service_that_starts_again_follows_the_same_driver(
    scene: Scene, how: Literal["kill", "stop"]
) -> None:
    scene.trigger()
    scene.until_works()
    scene.end_service(how)
    scene.until_works()
    scene.service.start()
    scene.until(lambda: len(scene.attempts()) == 2, "a second attempt")
    scene.until_works()
    scene.tell("finish")
    scene.until_state("success")
    assert len(scene.drivers()) == 1
    assert [state for _, state in scene.attempts()] == ["lost", "success"]


def test_a_driver_that_failed_while_the_service_was_dead_is_repeated(scene: Scene) -> None:
    scene.trigger()
    scene.until_works()
    scene.end_service("kill")
    scene.tell("fail")
    scene.until(scene.works_no_longer, "the driver has failed")
    (scene.marks / "fail").unlink()
    scene.service.start()
    scene.until(lambda: len(scene.drivers()) == 2, "a second driver")
    scene.tell("finish")
    scene.until_state("success")
    first, second = scene.drivers()
    assert first.read_text() == second.read_text()


def test_the_death_of_a_driver_is_the_runs_error(scene: Scene, cluster: SparkCluster) -> None:
    scene.trigger()
    scene.until_works()
    _driver_of(cluster)[1].kill()
    run = scene.until_state("failed")
    assert f"the application {scene.launch()['external_id']} failed" in run["error"]
    scene.until(scene.works_no_longer, "the executors have ended", within_s=20)
    assert len(scene.drivers()) == 1


def test_the_death_of_the_drivers_worker_is_the_runs_error(
    scene: Scene, cluster: SparkCluster
) -> None:
    scene.trigger()
    scene.until_works()
    worker, driver = _driver_of(cluster)
    os.kill(worker.pid, signal.SIGKILL)
    run = scene.until_state("failed")
    assert "failed: the worker of its driver was lost" in run["error"]
    scene.until(lambda: not is_alive(driver), "the driver has ended", within_s=20)
    scene.until(scene.works_no_longer, "the executors have ended", within_s=20)


def test_an_application_survives_the_death_of_another_worker(
    scene: Scene, cluster: SparkCluster
) -> None:
    scene.trigger()
    scene.until_works()
    worker, _ = _driver_of(cluster)
    (other,) = {cluster.daemon, *cluster.others} - {worker}
    other.kill()
    scene.until_works()
    scene.tell("finish")
    scene.until_state("success")
    assert len(scene.drivers()) == 1


def test_a_master_that_remembers_its_drivers_is_waited_for(
    scene: Scene, cluster: SparkCluster
) -> None:
    scene.trigger()
    scene.until_works()
    cluster.master.kill()
    launch = scene.until_launch(state="unknown")
    assert "does not answer" in launch["reason"]
    cluster.master.start()
    scene.until_launch(state="running")
    scene.until_works()
    scene.tell("finish")
    scene.until_state("success")
    assert len(scene.drivers()) == 1


def test_a_master_that_has_forgotten_its_drivers_leaves_the_run_in_doubt(
    scene: Scene, cluster: SparkCluster
) -> None:
    scene.trigger()
    scene.until_works()
    launch = scene.launch()
    cluster.master.kill()
    cluster.forget_drivers()
    cluster.master.start()
    scene.until_launch(
        state="unknown", reason=f"the master no longer knows the driver {launch['external_id']}"
    )
    # The workers register with the new master, which ends the unknown driver.
    scene.until(scene.works_no_longer, "the driver has ended")
    scene.service.run("runs", "cancel", "steps", "--last")
    scene.until_state("cancelled")
    assert scene.launch()["state"] == "unknown"
    resolved = scene.service.run("runs", "resolve", "steps", "--last", "--lost")
    assert "attempt 1 is lost" in resolved.stdout, resolved.stderr


def _driver_of(cluster: SparkCluster) -> tuple[Daemon, psutil.Process]:
    """Return the worker that runs the only driver, and the driver's process."""
    found = [
        (worker, child)
        for worker in (cluster.daemon, *cluster.others)
        for child in psutil.Process(worker.pid).children()
        # The worker's other children are executors and ended processes.
        if is_alive(child) and _DRIVER in child.cmdline()
    ]
    (one,) = found
    return one
