"""A Kubernetes API server with etcd, whose pods kwok moves through their phases. No container runs.

The first use on a machine builds the three programs: etcd and kube-apiserver from the Go modules that
`kubernetes/go.mod` names, and kwok from kwok's own module. The build has the lowest priority, so it may take 35 minutes
on a busy machine.
"""

from __future__ import annotations

import csv
import hashlib
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.services.certificates import Authority
from tests.services.process import (
    Daemon,
    accepts_connections,
    free_ports,
    running,
    temporary_home,
)
from tests.services.programs.go_program import find_built, find_go, run_go

_SOURCE: Final = Path(__file__).with_name("kubernetes")
_KWOK: Final = "sigs.k8s.io/kwok/cmd/kwok@v0.8.0"
_BUILD_TIMEOUT_S: Final = 3600
_VERSION: Final = "v1.34.4"
ADMIN: Final = "admin-token"
"""A token that may do everything."""
PHASE: Final = "tests/phase"
"""The annotation of a pod that tells kwok the phase that the pod should have."""


@contextmanager
def open_kubernetes(users: Mapping[str, str]) -> Iterator[Kubernetes]:
    """Start etcd, an API server, and kwok with one node `node`.

    Args:
        users: The names of users without rights, by token.
    Raises:
        ServiceUnavailable: There is no Go or no openssl, or the programs could not be built.
    """
    binaries = _find_binaries()
    with temporary_home("kubernetes") as home:
        server = Kubernetes(binaries, home, users)
        with running(server):
            yield server


class Kubernetes:
    """The API server. After `kill` and `start` it has its old port and objects.

    Attributes:
        url: The address of the API server.
        authority: The file with the certificate that clients trust.
        daemon: The process of the API server.
    """

    def __init__(self, binaries: Path, home: Path, users: Mapping[str, str]) -> None:
        port, etcd_port, peer_port = free_ports(3)
        self.url = f"https://localhost:{port}"
        authority = Authority(home / "certificates")
        self.authority = authority.file
        certificate, key = home / "server.crt", home / "server.key"
        authority.issue(certificate, key, days=30)
        self._tls = ssl.create_default_context(cafile=str(self.authority))
        tokens = home / "tokens.csv"
        with tokens.open("w") as file:
            rows = csv.writer(file)
            rows.writerow([ADMIN, "admin", "1", "system:masters"])
            rows.writerows([token, name, name] for token, name in users.items())
        etcd = f"http://127.0.0.1:{etcd_port}"
        self.etcd = Daemon(
            "etcd",
            [
                binaries / "etcd",
                *("--data-dir", home / "etcd"),
                *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
                *("--listen-peer-urls", f"http://127.0.0.1:{peer_port}"),
                *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer_port}"),
                *("--initial-cluster", f"default=http://127.0.0.1:{peer_port}"),
                "--unsafe-no-fsync",
            ],
            log=home / "etcd.log",
            ready=lambda: accepts_connections(etcd_port),
        )
        self.daemon = Daemon(
            "kube-apiserver",
            [
                binaries / "kube-apiserver",
                f"--etcd-servers={etcd}",
                *("--bind-address=127.0.0.1", f"--secure-port={port}"),
                *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
                *(f"--token-auth-file={tokens}", "--authorization-mode=RBAC"),
                "--anonymous-auth=false",
                "--endpoint-reconciler-type=none",
                # The plugin ServiceAccount would refuse all pods, because the controller manager, which creates service
                # accounts, does not run.
                "--disable-admission-plugins=ServiceAccount",
                "--service-account-issuer=https://localhost",
                *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
                "--service-cluster-ip-range=10.96.0.0/16",
            ],
            log=home / "apiserver.log",
            ready=self._is_ready,
        )
        config = home / "kubeconfig"
        config.write_text(self._client_config())
        self.kwok = Daemon(
            "kwok",
            [
                binaries / "kwok",
                *("--kubeconfig", config, "--config", _SOURCE / "stages.yaml"),
                "--manage-all-nodes=true",
            ],
            log=home / "kwok.log",
            ready=self._has_node,
        )

    def start(self) -> None:
        for daemon in (self.etcd, self.daemon, self.kwok):
            daemon.start()

    def kill(self) -> None:
        for daemon in (self.kwok, self.daemon, self.etcd):
            daemon.kill()

    def ask(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> Any:
        """Send a request as the administrator, and return the answer.

        Raises:
            HTTPError: The server refused.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
        request = Request(f"{self.url}{path}", data, headers, method=method)
        with urlopen(request, timeout=10, context=self._tls) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the pods with these labels."""
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(selector)}"
        return list(self.ask("GET", path)["items"])

    def move(self, pod: Mapping[str, Any], phase: str) -> None:
        """Make kwok move a pod to this phase."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        patch = {"metadata": {"annotations": {PHASE: phase}}}
        self.ask("PATCH", path, patch, kind="application/merge-patch+json")

    def _is_ready(self) -> bool:
        try:
            return bool(self.ask("GET", "/readyz") == "ok")
        except (HTTPError, URLError, OSError):
            return False

    def _has_node(self) -> bool:
        """Make the node, and return whether kwok has taken it over."""
        try:
            node = self.ask("GET", "/api/v1/nodes/node")
        except HTTPError:
            node = self.ask("POST", "/api/v1/nodes", {"metadata": {"name": "node"}})
        conditions = node.get("status", {}).get("conditions") or []
        return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)

    def _client_config(self) -> str:
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": self.url,
                            "certificate-authority": str(self.authority),
                        },
                    }
                ],
                "users": [{"name": "u", "user": {"token": ADMIN}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )


@cache
def _find_binaries() -> Path:
    """Return the folder with etcd, kube-apiserver and kwok, which the first use on a machine builds."""
    go = find_go("Kubernetes")
    content = b"".join(path.read_bytes() for path in sorted(_SOURCE.glob("*go*"))) + _KWOK.encode()
    digest = hashlib.sha256(content).hexdigest()[:12]
    return find_built(f"kubernetes-{digest}", lambda folder: _build(go, folder))


def _build(go: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    version = f"-s -w -X k8s.io/component-base/version.gitVersion={_VERSION}"
    build = [go, "build", "-p=1", "-mod=readonly", "-buildvcs=false", f"-ldflags={version}", "-o"]
    for name, package in (
        ("etcd", "go.etcd.io/etcd/server/v3"),
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ):
        _run([*build, str(folder / name), package])
    _run([go, "install", "-p=1", "-buildvcs=false", "-ldflags=-s -w", _KWOK], GOBIN=str(folder))


def _run(command: list[str], **variables: str) -> None:
    niced = ["nice", "-n", "19", *command]
    run_go(
        "Kubernetes", niced, timeout_s=_BUILD_TIMEOUT_S, cwd=_SOURCE, GOMAXPROCS="1", **variables
    )
