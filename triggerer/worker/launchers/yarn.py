"""Applications on YARN in cluster mode: found by tag, followed and killed through the resource manager's REST API."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from triggerer.domain.attempt_states import AttemptState
from triggerer.errors import ConfigurationError
from triggerer.worker.launchers.places import HttpPlace, answered, watch_by_asking
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

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

YARN: Final = "yarn"
_TAGS: Final = "spark.yarn.tags"
_WEB: Final = "yarn.resourcemanager.webapp.address"
_HOST: Final = "yarn.resourcemanager.hostname"
_PORT: Final = 8088
_APPS: Final = "/ws/v1/cluster/apps"
_ENDS: Final = {
    "SUCCEEDED": AttemptState.SUCCESS,
    "FAILED": AttemptState.FAILED,
    "KILLED": AttemptState.KILLED,
}


class YarnLauncher:
    """See `Launcher`. The resource manager stores the tag with the application."""

    name = YARN
    can_reattach = True

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._rm = HttpPlace(resource_manager(settings.conf, os.environ))
        self.place: str | None = self._rm.address

    def launch(self, intent: Intent) -> Handle:
        submission = intent.details["submission"]
        tags = [one for one in submission.conf.get(_TAGS, "").split(",") if one]
        extra = {
            _TAGS: ",".join([*tags, intent.tag]),
            # If YARN restarted the driver, the run would have a second attempt.
            "spark.yarn.maxAppAttempts": "1",
            # spark-submit ends once YARN has accepted the application. `watch` follows the application.
            "spark.yarn.submit.waitAppCompletion": "false",
            **{f"spark.yarn.appMasterEnv.{k}": v for k, v in submission.environment.items()},
        }
        output = submit_to_cluster(intent, self._settings, extra)
        found = re.search(r"application_\d+_\d+", output)
        external_id = None if found is None else found[0]
        return Handle(intent.tag, external_id, self._link(external_id))

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        def look() -> Sighting:
            answer = self._rm.ask("GET", f"{_APPS}?applicationTags={quote(tag)}")
            apps = (answer["apps"] or {}).get("app") or []
            # Running applications come first.
            apps.sort(key=lambda app: app["state"] in ("FINISHED", "FAILED", "KILLED"))
            return self._sighting(tag, apps[0]) if apps else Absent()

        return answered(look)

    def stop(self, handle: Handle) -> Sighting:
        def look() -> Sighting:
            sighting = self.find(handle.tag, handle.external_id)
            if not isinstance(sighting, Running):
                return sighting
            path = f"{_APPS}/{sighting.handle.external_id}/state"
            self._rm.ask("PUT", path, {"state": "KILLED"})
            return self.find(handle.tag, handle.external_id)

        return answered(look)

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        return watch_by_asking(self.find, handle)

    def _sighting(self, tag: str, app: Mapping[str, Any]) -> Sighting:
        handle = Handle(tag, app["id"], app.get("trackingUrl") or self._link(app["id"]))
        diagnostics = str(app.get("diagnostics") or "").strip() or None
        if app["state"] not in ("FINISHED", "FAILED", "KILLED"):
            progress = app["state"].lower().replace("_", " ")
            return Running(
                handle, progress if app["state"] == "RUNNING" else diagnostics or progress
            )
        state = _ENDS.get(app.get("finalStatus", ""))
        if state is None:
            return Unknown(f"YARN says {app['state']} with the end {app.get('finalStatus')}")
        return Ended(handle, state, diagnostics)

    def _link(self, external_id: str | None) -> str | None:
        return None if external_id is None else f"{self._rm.address}/cluster/app/{external_id}"


def resource_manager(conf: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the address of the resource manager's REST API.

    The address is `spark.hadoop.yarn.resourcemanager.webapp.address` in `conf`, or else comes from `yarn-site.xml`.

    Raises:
        ConfigurationError: Neither `conf` nor `yarn-site.xml` has the address.
    """
    site = {key.removeprefix("spark.hadoop."): value for key, value in conf.items()}
    for variable in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        if folder := environ.get(variable):
            site = _site(Path(folder) / "yarn-site.xml") | site
            break
    address = site.get(_WEB)
    if address is None or "${" in address:
        host = site.get(_HOST)
        address = None if host is None else f"{host}:{_PORT}"
    if not address:
        raise ConfigurationError(
            "nothing says where YARN's resource manager is",
            hint=f"set YARN_CONF_DIR, or spark.hadoop.{_WEB} in [spark] conf",
        )
    return address if "://" in address else f"http://{address}"


def _site(file: Path) -> dict[str, str]:
    try:
        root = ET.parse(file).getroot()
    except (OSError, ET.ParseError):
        return {}
    return {
        one.findtext("name", "").strip(): one.findtext("value", "").strip()
        for one in root.iter("property")
    }
