"""Applications on Kubernetes in cluster mode. The driver is a pod. Its label is computed from the tag of the launch.

The pod's phase shows whether the application succeeded: `spark-submit` ends with 0 even if the driver fails. The pod's
name is computed from the tag, too, so that the API refuses a second pod for a tag.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.errors import ConfigurationError
from triggerer.worker.launchers.cluster_http import HttpApi, NoAnswer, answered, watch_by_asking
from triggerer.worker.launchers.protocol import (
    Absent,
    Ended,
    Handle,
    Intent,
    Running,
    Sighting,
    Unknown,
)
from triggerer.worker.launchers.submitting import submit_to_cluster
from triggerer.worker.spark.settings import master_of

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

KUBERNETES: Final = "kubernetes"
_LABEL: Final = "triggerer-tag"
_ANNOTATION: Final = "triggerer/tag"
_AUTHENTICATE: Final = "spark.kubernetes.authenticate.submission"
_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


class KubernetesLauncher:
    """Launches applications on Kubernetes, see `Launcher`.

    Raises:
        ConfigurationError: A certificate that the settings name cannot be loaded.
    """

    name = KUBERNETES
    can_reattach = True

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        conf = settings.conf
        self._namespace = conf.get("spark.kubernetes.namespace", "default")
        address = master_of(settings).removeprefix("k8s://").rstrip("/")
        address = address if "://" in address else f"https://{address}"
        self._api = HttpApi(address, partial(_headers, conf), _tls(address, conf))
        self.place: str | None = f"{address}/{self._namespace}"

    def launch(self, intent: Intent) -> Handle:
        submission = intent.details["submission"]
        label = label_of(intent.tag)
        name = f"triggerer-{label}-driver"
        extra = {
            f"spark.kubernetes.driver.label.{_LABEL}": label,
            f"spark.kubernetes.executor.label.{_LABEL}": label,
            f"spark.kubernetes.driver.annotation.{_ANNOTATION}": intent.tag,
            "spark.kubernetes.driver.pod.name": name,
            # The namespace must be the configured one, because the next attempt looks for the pod there.
            "spark.kubernetes.namespace": self._namespace,
            "spark.kubernetes.submission.waitAppCompletion": "false",
            **{f"spark.kubernetes.driverEnv.{k}": v for k, v in submission.environment.items()},
        }
        submit_to_cluster(intent, self._settings, extra)
        return Handle(intent.tag, name)

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        def ask() -> Sighting:
            pods = self._drivers(tag)
            return _sighting(tag, pods[0]) if pods else Absent()

        return answered(ask)

    def stop(self, handle: Handle) -> Sighting:
        """Delete the driver's pod. Kubernetes then deletes the executors."""

        def ask_to_stop() -> Sighting:
            for pod in self._drivers(handle.tag):
                if isinstance(ended := _sighting(handle.tag, pod), Ended):
                    return ended
                self._delete(pod["metadata"])
            return self.find(handle.tag)

        return answered(ask_to_stop)

    def _drivers(self, tag: str) -> list[dict[str, Any]]:
        selector = f"{_LABEL}%3D{label_of(tag)}%2Cspark-role%3Ddriver"
        answer = self._api.ask("GET", f"{self._pods}?labelSelector={selector}")
        return list(answer["items"])

    def _delete(self, meta: Mapping[str, Any]) -> None:
        options = {"preconditions": {"uid": meta["uid"]}, "propagationPolicy": "Background"}
        try:
            self._api.ask("DELETE", f"{self._pods}/{meta['name']}", options)
        except NoAnswer as error:
            # The driver is gone already: no pod has its name (404), or a later pod has the name and another uid (409).
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        return watch_by_asking(self.find, handle)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"


def label_of(tag: str) -> str:
    """Return the value of the driver's label: a digest of the tag, because a label has at most 63 characters."""
    return hashlib.sha256(tag.encode()).hexdigest()[:32]


def _sighting(tag: str, pod: Mapping[str, Any]) -> Sighting:
    meta, status = pod["metadata"], pod.get("status") or {}
    handle = Handle(tag, meta["name"])
    match status.get("phase"):
        case "Succeeded":
            return Ended(handle, AttemptState.SUCCESS)
        case "Failed":
            return Ended(handle, AttemptState.FAILED, _reason(status))
        case "Unknown":
            return Unknown(f"the node of the pod {meta['name']} does not answer")
        case _ if meta.get("deletionTimestamp"):
            return Running(handle, "is being deleted")
        case phase:
            return Running(handle, _waits_for(status) or str(phase or "pending").lower())


def _reason(status: Mapping[str, Any]) -> str | None:
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        # Look for the container that failed: a sidecar beside the driver may have ended with 0.
        if ended and ended.get("exitCode"):
            said = ended.get("message") or ended.get("reason") or "no reason"
            return f"exit code {ended['exitCode']}: {said}"
    return status.get("message") or status.get("reason")


def _waits_for(status: Mapping[str, Any]) -> str | None:
    """Return why the pod does not run yet, such as an image that cannot be pulled, or a full cluster."""
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return f"waits: {waiting.get('message') or waiting.get('reason')}"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"waits: {condition.get('message') or condition.get('reason')}"
    return None


def _headers(conf: Mapping[str, str]) -> dict[str, str]:
    token = conf.get(f"{_AUTHENTICATE}.oauthToken")
    file = conf.get(f"{_AUTHENTICATE}.oauthTokenFile")
    if token is None:
        path = Path(file) if file else _IN_CLUSTER / "token"
        try:
            token = path.read_text().strip() if path.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            raise NoAnswer(f"the token in {path} cannot be read: {error}") from error
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _tls(address: str, conf: Mapping[str, str]) -> ssl.SSLContext | None:
    if not address.startswith("https://"):
        return None
    certificate = conf.get(f"{_AUTHENTICATE}.clientCertFile")
    try:
        authority = conf.get(f"{_AUTHENTICATE}.caCertFile")
        if authority is None and (_IN_CLUSTER / "ca.crt").is_file():
            authority = str(_IN_CLUSTER / "ca.crt")
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, conf.get(f"{_AUTHENTICATE}.clientKeyFile"))
    except OSError as error:
        # An `ssl.SSLError` is an OSError, too.
        raise ConfigurationError(
            f"the certificates for {address} cannot be loaded: {error}",
            hint=f"look at the files that {_AUTHENTICATE}.* of [spark] conf names",
        ) from error
    return context
