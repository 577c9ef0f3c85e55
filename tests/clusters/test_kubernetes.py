"""Applications in cluster mode on a real Kubernetes API server. kwok moves the phases of pods; no container runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.standalone import Standalone
from tests.clusters.scene import Scene, serving_application
from tests.services.availability import skip_or_fail
from tests.services.clusters.kubernetes import Kubernetes, open_kubernetes
from tests.services.process import ServiceUnavailable, free_ports
from triggerer.config import SparkSettings
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import Launch
from triggerer.errors import SubmitFailed
from triggerer.worker.launchers import Absent, Running, Unknown
from triggerer.worker.launchers.kubernetes import KubernetesLauncher, label_of
from triggerer.worker.spark.sessions.classic import find_installation
from triggerer.worker.submit.following import follow
from triggerer.worker.submit.submission import Submission, application_conf

# The first test may have to build the programs.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

TOKEN: Final = "service-token"
STRANGER: Final = "strangers-token"
NAMESPACE: Final = "jobs"
_RULES: Final = [
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["create", "get", "list", "watch", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["services", "configmaps"],
        "verbs": ["create", "get", "list", "patch", "delete"],
    },
]
"""The rights that docs/howto/cluster-drivers.md names."""
_POD: Final = """
apiVersion: v1
kind: Pod
spec:
  nodeName: node
"""


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[Kubernetes]:
    try:
        with open_kubernetes({TOKEN: "triggerer", STRANGER: "stranger"}) as server:
            _allow(server)
            yield server
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


def _allow(server: Kubernetes) -> None:
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    meta = {"metadata": {"name": "triggerer"}}
    server.ask("POST", f"{rbac}/roles", {**meta, "rules": _RULES})
    user = {"kind": "User", "name": "triggerer", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": "triggerer", "apiGroup": "rbac.authorization.k8s.io"}
    server.ask("POST", f"{rbac}/rolebindings", {**meta, "subjects": [user], "roleRef": role})


def _conf(server: Kubernetes, folder: Path, token: str = TOKEN) -> dict[str, str]:
    template = folder / "pod.yaml"
    template.write_text(_POD)
    authenticate = "spark.kubernetes.authenticate.submission"
    return {
        "spark.kubernetes.namespace": NAMESPACE,
        "spark.kubernetes.container.image": "none",
        "spark.kubernetes.driver.podTemplateFile": str(template),
        f"{authenticate}.caCertFile": str(server.authority),
        f"{authenticate}.oauthToken": token,
    }


@pytest.fixture(scope="module")
def service(
    kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("home")
    conf = _conf(kubernetes, folder)
    with serving_application(
        folder, "local:///opt/steps.py", master=f"k8s://{kubernetes.url}", conf=conf
    ) as running:
        yield running


@pytest.fixture
def scene(service: Standalone, kubernetes: Kubernetes, tmp_path: Path) -> Iterator[Scene]:
    yield Scene(service, tmp_path / "marks")
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for pod in kubernetes.pods(NAMESPACE, ""):
        kubernetes.ask("DELETE", f"{pods}/{pod['metadata']['name']}")


def test_a_driver_is_found_by_its_label_and_followed_through_its_phases(
    scene: Scene, kubernetes: Kubernetes
) -> None:
    scene.trigger()
    launch = scene.until_launch(state="running", reason="pending")
    pod = _pod_of(kubernetes, launch["tag"])
    assert launch["external_id"] == pod["metadata"]["name"]
    assert launch["place"] == f"{kubernetes.url}/{NAMESPACE}"
    assert pod["metadata"]["annotations"]["triggerer/tag"] == launch["tag"]
    variables = {
        one["name"]: one.get("value")
        for container in pod["spec"]["containers"]
        for one in container["env"]
    }
    assert len(variables["TRIGGERER_RUN_TOKEN"]) == 32
    kubernetes.move(pod, "Running")
    scene.until_launch(state="running", reason="running")
    kubernetes.move(pod, "Succeeded")
    assert scene.until_state("success")["error"] is None
    assert scene.launch()["state"] == "success"


def test_the_end_of_a_failed_driver_is_the_runs_error(scene: Scene, kubernetes: Kubernetes) -> None:
    scene.trigger()
    pod = _pod_of(kubernetes, scene.until_launch(reason="pending")["tag"])
    kubernetes.move(pod, "Running")
    scene.until_launch(reason="running")
    kubernetes.move(pod, "Failed")
    run = scene.until_state("failed")
    name = pod["metadata"]["name"]
    assert f"the application {name} failed: exit code 137: OOMKilled" in run["error"]


def test_a_cancelled_run_deletes_its_pod_and_waits_until_it_is_gone(
    scene: Scene, kubernetes: Kubernetes
) -> None:
    scene.trigger()
    launch = scene.until_launch(reason="pending")
    kubernetes.move(_pod_of(kubernetes, launch["tag"]), "Running")
    scene.until_launch(reason="running")
    scene.service.run("runs", "cancel", "steps", "--last")
    scene.until_state("cancelled")
    scene.until_stopped()
    assert kubernetes.pods(NAMESPACE, _selector(launch["tag"])) == []


def test_a_service_that_was_killed_follows_the_same_pod(
    scene: Scene, kubernetes: Kubernetes
) -> None:
    scene.trigger()
    pod = _pod_of(kubernetes, scene.until_launch(reason="pending")["tag"])
    kubernetes.move(pod, "Running")
    scene.until_launch(reason="running")
    scene.end_service("kill")
    scene.service.start()
    scene.until(lambda: len(scene.attempts()) == 2, "a second attempt")
    kubernetes.move(pod, "Succeeded")
    scene.until_state("success")
    assert scene.attempts() == [(1, "lost"), (2, "success")]
    assert len(kubernetes.pods(NAMESPACE, "spark-role=driver")) == 1


def test_a_service_that_was_killed_while_it_submitted_has_one_driver_in_the_end(
    scene: Scene, kubernetes: Kubernetes
) -> None:
    scene.trigger()
    scene.until_launch(state="launching")
    scene.end_service("kill")
    scene.service.start()
    scene.until(lambda: len(scene.attempts()) == 2, "a second attempt")
    launch = scene.until_launch(reason="pending")
    (pod,) = kubernetes.pods(NAMESPACE, "spark-role=driver")
    assert pod["metadata"]["name"] == launch["external_id"]
    kubernetes.move(pod, "Running")
    kubernetes.move(pod, "Succeeded")
    scene.until_state("success")


def test_an_api_server_that_is_away_is_waited_for(scene: Scene, kubernetes: Kubernetes) -> None:
    scene.trigger()
    pod = _pod_of(kubernetes, scene.until_launch(reason="pending")["tag"])
    kubernetes.daemon.kill()
    assert "does not answer" in scene.until_launch(state="unknown")["reason"]
    kubernetes.daemon.start()
    scene.until_launch(state="running", reason="pending")
    kubernetes.move(pod, "Running")
    scene.until_launch(reason="running")
    kubernetes.move(pod, "Succeeded")
    scene.until_state("success")


@pytest.mark.parametrize(
    ("token", "refusal", "look"),
    [
        ("wrong", "Unauthorized", "refused the credentials (401 Unauthorized)"),
        (STRANGER, "is forbidden", 'answered 403 Forbidden: pods is forbidden: User "stranger"'),
    ],
)
def test_a_refused_token_is_one_sentence(
    kubernetes: Kubernetes, tmp_path: Path, token: str, refusal: str, look: str
) -> None:
    settings = SparkSettings(
        master=f"k8s://{kubernetes.url}", conf=_conf(kubernetes, tmp_path, token)
    )
    sighting = KubernetesLauncher(settings).find("t")
    assert isinstance(sighting, Unknown)
    assert f"{kubernetes.url} {look}" in sighting.reason
    launches: list[Launch] = []
    with pytest.raises(SubmitFailed, match=refusal) as refused:
        _submit(settings, tmp_path, launches)
    assert not re.search(r"\n|Status\(", refused.value.message)
    assert launches[-1].state is AttemptState.UNKNOWN


def test_a_token_that_is_renewed_is_read_again(kubernetes: Kubernetes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("expired")
    conf = _conf(kubernetes, tmp_path)
    authenticate = "spark.kubernetes.authenticate.submission"
    del conf[f"{authenticate}.oauthToken"]
    conf[f"{authenticate}.oauthTokenFile"] = str(token)
    launcher = KubernetesLauncher(SparkSettings(master=f"k8s://{kubernetes.url}", conf=conf))
    assert isinstance(launcher.find("t"), Unknown)
    token.write_text(f"{TOKEN}\n")
    assert launcher.find("t") == Absent()


def test_an_absent_server_is_one_sentence(kubernetes: Kubernetes, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"https://localhost:{port}"
    settings = SparkSettings(master=f"k8s://{url}", conf=_conf(kubernetes, tmp_path))
    sighting = KubernetesLauncher(settings).find("t")
    assert isinstance(sighting, Unknown)
    assert sighting.reason.startswith(f"{url} does not answer: ")
    assert "\n" not in sighting.reason


def test_a_launcher_stops_only_the_pod_of_its_tag(kubernetes: Kubernetes, tmp_path: Path) -> None:
    settings = SparkSettings(master=f"k8s://{kubernetes.url}", conf=_conf(kubernetes, tmp_path))
    launcher = KubernetesLauncher(settings)
    for tag in ("one", "two"):
        meta = {"name": tag, "labels": {"triggerer-tag": label_of(tag), "spark-role": "driver"}}
        containers = [{"name": "c", "image": "none"}]
        pod = {"metadata": meta, "spec": {"containers": containers}}
        kubernetes.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    found = launcher.find("one")
    assert isinstance(found, Running)
    assert launcher.stop(found.handle) == Absent()
    assert isinstance(launcher.find("two"), Running)


def _submit(settings: SparkSettings, folder: Path, launches: list[Launch]) -> None:
    installation = find_installation(folder)
    own: Mapping[str, str] = {"spark.submit.deployMode": "cluster"}
    conf = application_conf(settings, installation, own, ())
    submission = Submission("t", "d.a t", "local:///opt/a.py", (), conf)
    follow(submission, settings, installation, "a", [], launches.append)


def _selector(tag: str) -> str:
    return f"triggerer-tag={label_of(tag)}"


def _pod_of(server: Kubernetes, tag: str) -> dict[str, Any]:
    (pod,) = server.pods(NAMESPACE, _selector(tag))
    return pod
