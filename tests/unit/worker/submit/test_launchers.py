"""Applications in cluster mode: submitted under a tag, found by it, followed, and stopped."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.submit.fake_places import conf_of, fake_installation, serving
from triggerer.config import SparkSettings
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import FormerLaunch, Launch
from triggerer.errors import ConfigurationError, RunFailed, SubmitFailed
from triggerer.worker.launchers import (
    Absent,
    Ended,
    Handle,
    Intent,
    Running,
    Unknown,
    launcher_named,
)
from triggerer.worker.launchers.kubernetes import KubernetesLauncher, label_of
from triggerer.worker.launchers.standalone import StandaloneLauncher
from triggerer.worker.launchers.yarn import YarnLauncher
from triggerer.worker.launchers.yarn_site import resource_managers
from triggerer.worker.submit.following import follow, launcher_of_master
from triggerer.worker.submit.submission import Submission

TAG = "triggerer-abc-7-1-3-0a1b2c3d-1"
CLUSTER = {"spark.submit.deployMode": "cluster"}


def submission(**values: Any) -> Submission:
    fields: dict[str, Any] = {"application": "s3a://b/a.jar", "arguments": ("x",), "conf": CLUSTER}
    fields |= {"main_class": "A", "environment": {"TRIGGERER_RUN_TOKEN": "t0"}}
    return Submission(TAG, f"d.a {TAG}", **{**fields, **values})


def intent(folder: Path, one: Submission | None = None, **installation: Any) -> Intent:
    details = {"installation": fake_installation(folder, **installation)}
    return Intent(TAG, "d.a", {"submission": one or submission(), **details})


class Yarn:
    """A resource manager with at most one application."""

    def __init__(self) -> None:
        self.app: dict[str, Any] | None = None
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, object]:
        self.asked.append((method, path, body))
        if method == "PUT" and self.app is not None:
            self.app |= {"state": body["state"], "finalStatus": body["state"]}
            return 200, body
        apps = [self.app] if self.app and path.endswith(f"applicationTags={TAG}") else []
        return 200, {"apps": {"app": apps} if apps else None}


def yarn_at(port: int) -> SparkSettings:
    key = "spark.hadoop.yarn.resourcemanager.webapp.address"
    return SparkSettings(master="yarn", conf={key: f"127.0.0.1:{port}"})


def test_yarn_gets_the_tag_and_the_environment_and_its_id_is_read(tmp_path: Path) -> None:
    with serving(Yarn()) as port:
        said = "INFO Client: Submitted application application_1_0001"
        handle = YarnLauncher(yarn_at(port)).launch(intent(tmp_path, said=said))
    assert handle.external_id == "application_1_0001"
    conf = conf_of(tmp_path)
    assert conf["spark.yarn.tags"] == TAG
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    assert conf["spark.yarn.maxAppAttempts"] == "1"
    assert conf["spark.yarn.appMasterEnv.TRIGGERER_RUN_TOKEN"] == "t0"
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:4] == ["--master", "yarn", "--deploy-mode", "cluster"]


def test_yarn_finds_by_tag_kills_and_tells_the_end() -> None:
    yarn = Yarn()
    with serving(yarn) as port:
        launcher = YarnLauncher(yarn_at(port))
        assert launcher.find(TAG) == Absent()
        yarn.app = {"id": "application_1_0001", "state": "ACCEPTED", "diagnostics": "no room"}
        running = launcher.find(TAG)
        assert isinstance(running, Running)
        assert running.progress == "no room"
        assert running.handle.link == f"http://127.0.0.1:{port}/cluster/app/application_1_0001"
        stopped = launcher.stop(running.handle)
        assert isinstance(stopped, Ended)
        assert stopped.state is AttemptState.KILLED
        assert ("PUT", "/ws/v1/cluster/apps/application_1_0001/state", {"state": "KILLED"}) in (
            yarn.asked
        )
        yarn.app |= {"finalStatus": "FAILED", "state": "FINISHED", "diagnostics": "exit 13\n"}
        assert launcher.find(TAG) == Ended(running.handle, AttemptState.FAILED, "exit 13")
    assert isinstance(launcher.find(TAG), Unknown)


@pytest.mark.parametrize(
    ("settings", "addresses"),
    [
        ({"hostname": " rm "}, ["http://rm:8088"]),
        (
            {"hostname": "rm", "webapp.address": "${yarn.resourcemanager.hostname}:8088"},
            ["http://rm:8088"],
        ),
        (
            {
                "ha.rm-ids": "a, b",
                "hostname.a": "one",
                "webapp.address.b": "two:80",
                "hostname": "rm",
            },
            ["http://one:8088", "http://two:80"],
        ),
    ],
)
def test_the_resource_managers_are_read_from_yarns_own_file(
    tmp_path: Path, settings: dict[str, str], addresses: list[str]
) -> None:
    properties = "".join(
        f"<property><name>yarn.resourcemanager.{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{properties}</configuration>")
    assert resource_managers({}, {"YARN_CONF_DIR": str(tmp_path)}) == addresses


def test_the_resource_managers_may_speak_https_only_and_must_be_somewhere() -> None:
    conf = {"yarn.http.policy": "HTTPS_ONLY", "yarn.resourcemanager.hostname": "rm"}
    spark = {f"spark.hadoop.{key}": value for key, value in conf.items()}
    assert resource_managers(spark, {}) == ["https://rm:8090"]
    with pytest.raises(ConfigurationError, match="resource manager"):
        resource_managers({}, {})


def test_a_resource_manager_that_stands_by_is_passed_over() -> None:
    yarn = Yarn()
    yarn.app = {"id": "application_1_0001", "state": "RUNNING"}
    with serving(yarn) as port, serving(lambda *_: (307, "This is standby RM")) as standby:
        conf = {"ha.rm-ids": "a,b"}
        conf |= {
            "webapp.address.a": f"127.0.0.1:{standby}",
            "webapp.address.b": f"127.0.0.1:{port}",
        }
        settings = {f"spark.hadoop.yarn.resourcemanager.{key}": text for key, text in conf.items()}
        stopped = YarnLauncher(SparkSettings(master="yarn", conf=settings)).stop(Handle(TAG))
    assert isinstance(stopped, Ended)


class Kubernetes:
    """An API server with at most one pod."""

    def __init__(self) -> None:
        self.pod: dict[str, Any] | None = None
        self.deleted: list[Any] = []

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, object]:
        if method == "DELETE":
            if self.pod is None or body["preconditions"]["uid"] != self.pod["metadata"]["uid"]:
                return 409, {"message": "the UID in the precondition does not match"}
            self.deleted.append(path)
            self.pod = None
            return 200, {}
        found = [self.pod] if self.pod and f"triggerer-tag%3D{label_of(TAG)}" in path else []
        return 200, {"items": found}

    def set(self, phase: str, uid: str = "u1", **status: Any) -> None:
        meta = {"name": f"triggerer-{label_of(TAG)}-driver", "uid": uid}
        self.pod = {"metadata": meta, "status": {"phase": phase, **status}}


def kubernetes_at(port: int) -> SparkSettings:
    return SparkSettings(
        master=f"k8s://http://127.0.0.1:{port}", conf={"spark.kubernetes.namespace": "jobs"}
    )


def test_a_driver_on_kubernetes_has_a_name_and_a_label_that_belong_to_the_tag(
    tmp_path: Path,
) -> None:
    with serving(Kubernetes()) as port:
        handle = KubernetesLauncher(kubernetes_at(port)).launch(intent(tmp_path))
    conf = conf_of(tmp_path)
    label = conf["spark.kubernetes.driver.label.triggerer-tag"]
    assert label == label_of(TAG)
    assert len(label) <= 63
    assert conf["spark.kubernetes.driver.pod.name"] == handle.external_id
    assert conf["spark.kubernetes.driver.annotation.triggerer/tag"] == TAG
    assert conf["spark.kubernetes.driverEnv.TRIGGERER_RUN_TOKEN"] == "t0"
    assert conf["spark.kubernetes.namespace"] == "jobs"


def test_the_pods_phase_is_the_truth() -> None:
    api = Kubernetes()
    with serving(api) as port:
        launcher = KubernetesLauncher(kubernetes_at(port))
        assert launcher.find(TAG) == Absent()
        full = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient cpu"}
        api.set("Pending", conditions=[full])
        assert _progress(launcher.find(TAG)) == "waits: 0/2 nodes: Insufficient cpu"
        api.set("Running")
        assert _progress(launcher.find(TAG)) == "running"
        beside = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
        ended = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
        api.set("Failed", containerStatuses=[beside, ended])
        failed = launcher.find(TAG)
        assert isinstance(failed, Ended)
        assert (failed.state, failed.reason) == (AttemptState.FAILED, "exit code 137: OOMKilled")
        api.set("Succeeded")
        assert getattr(launcher.find(TAG), "state", None) is AttemptState.SUCCESS
        api.set("Unknown")
        assert isinstance(launcher.find(TAG), Unknown)


def test_without_its_certificates_kubernetes_has_no_launcher(tmp_path: Path) -> None:
    authenticate = "spark.kubernetes.authenticate.submission"
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for key in ("caCertFile", "clientCertFile"):
        for file in (tmp_path / "missing.pem", broken):
            conf = {f"{authenticate}.{key}": str(file)}
            with pytest.raises(ConfigurationError, match="certificates for https://c cannot be"):
                launcher_named("kubernetes", SparkSettings(master="k8s://c", conf=conf))


@pytest.mark.parametrize("token", ["no_text", "/proc/self/mem"])
def test_a_token_that_cannot_be_read_leaves_a_launch_unknown(tmp_path: Path, token: str) -> None:
    """Root may read each file, but nobody can read the first byte of `/proc/self/mem`."""
    (tmp_path / "no_text").write_bytes(b"\xff")
    file = tmp_path / token
    with serving(Kubernetes()) as port:
        settings = kubernetes_at(port)
        settings.conf["spark.kubernetes.authenticate.submission.oauthTokenFile"] = str(file)
        launcher = KubernetesLauncher(settings)
        for sighting in (launcher.find(TAG), launcher.stop(Handle(TAG))):
            assert f"the token in {file} cannot be read" in _reason(sighting)


def test_a_pod_is_deleted_only_if_it_is_the_one_that_was_seen() -> None:
    api = Kubernetes()
    with serving(api) as port:
        launcher = KubernetesLauncher(kubernetes_at(port))
        api.set("Running")
        assert launcher.stop(Handle(TAG)) == Absent()
        assert api.deleted == [f"/api/v1/namespaces/jobs/pods/triggerer-{label_of(TAG)}-driver"]


class Master:
    """A standalone master with its REST server and its page on one port."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.request: Any = None
        self.page: dict[str, Any] = {
            "status": "ALIVE",
            "activedrivers": [],
            "activeapps": [],
            "completedapps": [],
        }
        self.log = ""

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, object]:
        if path == "/json/":
            return 200, self.page
        if path == "/log/?driverId=driver-1&logType=stderr":
            return 200, self.log
        if path.endswith("/create"):
            self.request = body
            self.states["driver-1"] = "SUBMITTED"
            return 200, {"success": True, "submissionId": "driver-1"}
        driver = path.rsplit("/", 1)[-1]
        if "/kill/" in path:
            self.states[driver] = "KILLED"
            return 200, {"success": True}
        if driver not in self.states:
            return 200, {"success": False, "driverState": "NOT_FOUND"}
        state = self.states[driver]
        return 200, {"success": True, "driverState": state, "workerId": "worker-1"}


def master_at(port: int) -> SparkSettings:
    ports = {"spark.master.rest.port": str(port), "spark.master.ui.port": str(port)}
    return SparkSettings(master="spark://127.0.0.1:7077", conf=ports)


def test_a_standalone_master_gets_a_jar_and_its_driver_is_followed_and_killed(
    tmp_path: Path,
) -> None:
    master = Master()
    with serving(master) as port:
        launcher = StandaloneLauncher(master_at(port))
        handle = launcher.launch(intent(tmp_path))
        assert handle.external_id == "driver-1"
        assert master.request["environmentVariables"] == {"TRIGGERER_RUN_TOKEN": "t0"}
        assert master.request["sparkProperties"]["spark.app.name"] == f"d.a {TAG}"
        assert (
            _progress(launcher.find(TAG, "driver-1"))
            == "waits for a worker with room for its driver"
        )
        stopped = launcher.stop(handle)
        assert isinstance(stopped, Ended)
        assert stopped.state is AttemptState.KILLED
        assert isinstance(launcher.find(TAG, "driver-2"), Unknown)
        with pytest.raises(SubmitFailed, match="no Python drivers"):
            launcher.launch(intent(tmp_path / "p", submission(application="a.py")))


def test_without_its_drivers_id_an_application_is_gone_once_the_master_has_no_driver() -> None:
    master = Master()
    with serving(master) as port:
        launcher = StandaloneLauncher(master_at(port))
        assert launcher.find(TAG) == Absent()
        master.page["activedrivers"] = [{"id": "driver-9"}]
        assert "one of 1 drivers" in _reason(launcher.find(TAG))
        master.page["activeapps"] = [{"id": "app-1", "name": f"d.a {TAG}"}]
        assert "app-1 works" in _reason(launcher.stop(Handle(TAG)))


def test_without_its_drivers_id_nobody_can_tell_whether_an_ended_application_has_succeeded() -> (
    None
):
    master = Master()
    master.page["completedapps"] = [{"id": "app-1", "name": f"d.a {TAG}", "state": "FINISHED"}]
    with serving(master) as port:
        assert "app-1 has ended" in _reason(StandaloneLauncher(master_at(port)).find(TAG))
        master.page["completedapps"] = [{"id": "app-2", "name": "d.a another"}]
        assert StandaloneLauncher(master_at(port)).find(TAG) == Absent()


def test_the_error_of_a_failed_driver_is_in_its_log_on_the_workers_page() -> None:
    master = Master()
    with serving(master) as port:
        page = f"http://127.0.0.1:{port}"
        master.page["workers"] = [{"id": "worker-1", "webuiaddress": page}]
        master.states["driver-1"] = "FAILED"
        master.log = (
            "26/11/28 12:00:00 INFO SparkContext: no error\n"
            'Exception in thread "main" java.lang.reflect.InvocationTargetException\n'
            "\tat A.main\nCaused by: java.lang.IllegalStateException: no orders\n"
        )
        failed = StandaloneLauncher(master_at(port)).find(TAG, "driver-1")
    assert isinstance(failed, Ended)
    assert failed.reason == "java.lang.IllegalStateException: no orders"
    assert failed.handle.link == f"{page}/logPage/?driverId=driver-1&logType=stderr"


def test_a_master_that_stands_by_is_not_asked() -> None:
    class StandBy(Master):
        def __call__(self, method: str, path: str, body: Any) -> tuple[int, object]:
            if path == "/json/":
                return 200, {**self.page, "status": "STANDBY"}
            said = "Exception from the cluster:\nCurrent state is not alive: STANDBY. Can only …"
            return 200, {"success": False, "message": said}

    with serving(StandBy()) as port:
        launcher = StandaloneLauncher(master_at(port))
        reason = f"http://127.0.0.1:{port} is not active"
        assert launcher.find(TAG) == Unknown(reason)
        assert launcher.find(TAG, "driver-1") == Unknown(reason)


@pytest.mark.parametrize(
    ("master", "name"),
    [("yarn", "yarn"), ("k8s://https://h", "kubernetes"), ("spark://h:7077", "standalone")],
)
def test_the_master_decides_who_launches(master: str, name: str) -> None:
    assert launcher_of_master(master) == name
    with pytest.raises(SubmitFailed, match="runs no drivers"):
        launcher_of_master("local[2]")


def test_an_application_of_a_former_attempt_is_followed_in_place_of_a_new_one(
    tmp_path: Path,
) -> None:
    yarn = Yarn()
    launches: list[Launch] = []
    former = FormerLaunch(TAG, "yarn", 1, AttemptState.RUNNING, task_id="a", may_continue=True)
    with serving(yarn) as port:
        yarn.app = {"id": "application_1_0001", "state": "FINISHED", "finalStatus": "SUCCEEDED"}
        one = submission()
        follow(one, yarn_at(port), fake_installation(tmp_path), "a", [former], launches.append)
    assert not (tmp_path / "arguments").exists()
    assert [launch.state for launch in launches] == [AttemptState.SUCCESS]


def test_an_application_that_succeeded_before_the_run_was_cleared_is_submitted_again(
    tmp_path: Path,
) -> None:
    yarn = Yarn()
    launches: list[Launch] = []
    former = FormerLaunch("old", "yarn", 1, AttemptState.RUNNING, task_id="a")
    with serving(yarn) as port:
        yarn.app = {"id": "application_1_0001", "state": "FINISHED", "finalStatus": "SUCCEEDED"}
        one = submission()
        follow(one, yarn_at(port), fake_installation(tmp_path), "a", [former], launches.append)
    assert (tmp_path / "arguments").exists()
    states = [AttemptState.LAUNCHING, AttemptState.RUNNING, AttemptState.SUCCESS]
    assert [(launch.tag, launch.state) for launch in launches] == [(TAG, state) for state in states]


def test_the_reason_of_a_failed_application_is_the_tasks_error(tmp_path: Path) -> None:
    yarn = Yarn()
    launches: list[Launch] = []
    with serving(yarn) as port:
        yarn.app = {"id": "application_1_0001", "state": "FINISHED", "finalStatus": "FAILED"}
        yarn.app["diagnostics"] = "User class threw exception: X"
        one = submission()
        with pytest.raises(RunFailed, match="application_1_0001 failed: User class threw"):
            follow(one, yarn_at(port), fake_installation(tmp_path), "a", [], launches.append)
    states = [AttemptState.LAUNCHING, AttemptState.RUNNING, AttemptState.FAILED]
    assert [launch.state for launch in launches] == states
    assert launches[-1].external_id == "application_1_0001"


def test_a_refused_submission_says_why(tmp_path: Path) -> None:
    said = "Exception in thread main java.net.ConnectException: Connection refused"
    wanted = intent(tmp_path, said=said, code=1)
    with serving(Yarn()) as port, pytest.raises(SubmitFailed, match="Connection refused"):
        YarnLauncher(yarn_at(port)).launch(wanted)


def test_an_application_that_the_cluster_accepted_is_stopped_if_its_submission_fails(
    tmp_path: Path,
) -> None:
    yarn = Yarn()
    yarn.app = {"id": "application_1_0001", "state": "ACCEPTED"}
    launches: list[Launch] = []
    failing = fake_installation(tmp_path, said="Caused by: the connection was lost", code=1)
    with serving(yarn) as port, pytest.raises(SubmitFailed, match="the connection was lost"):
        follow(submission(), yarn_at(port), failing, "a", [], launches.append)
    assert yarn.app["state"] == "KILLED"
    assert [one.state for one in launches] == [AttemptState.LAUNCHING, AttemptState.CANCELLED]


@pytest.mark.parametrize(
    ("status", "document", "reason"),
    [
        (401, {"message": "Unauthorized"}, "refused the credentials (401 Unauthorized)"),
        (403, {"message": "pods is forbidden:\nno"}, "answered 403 Forbidden: pods is forbidden:"),
        (403, {"RemoteException": {"message": "no user"}}, "answered 403 Forbidden: no user"),
        (404, {}, "answered 404 Not Found: {}"),
        (200, {}, "the answer cannot be understood"),
        (200, [], "the answer cannot be understood"),
    ],
)
def test_a_place_that_does_not_give_its_list_leaves_a_launch_unknown(
    status: int, document: object, reason: str
) -> None:
    with serving(lambda *_: (status, document)) as port:
        for launcher in (
            KubernetesLauncher(kubernetes_at(port)),
            StandaloneLauncher(master_at(port)),
            YarnLauncher(yarn_at(port)),
        ):
            assert reason in _reason(launcher.find(TAG))
            assert reason in _reason(launcher.stop(Handle(TAG)))


def _reason(sighting: object) -> str:
    assert isinstance(sighting, Unknown), sighting
    return sighting.reason


def _progress(sighting: object) -> str | None:
    assert isinstance(sighting, Running), sighting
    return sighting.progress
