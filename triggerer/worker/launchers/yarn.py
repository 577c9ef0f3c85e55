"""Launches applications on YARN in cluster mode, and watches and kills them through the resource manager's REST API."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from triggerer.domain.attempt_states import AttemptState
from triggerer.worker.launchers.cluster_http import HttpApi, answered, ask_active, watch_by_asking
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
from triggerer.worker.launchers.yarn_site import resource_managers

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

YARN: Final = "yarn"
_TAGS: Final = "spark.yarn.tags"
_APPS: Final = "/ws/v1/cluster/apps"
_ENDS: Final = {
    "SUCCEEDED": AttemptState.SUCCESS,
    "FAILED": AttemptState.FAILED,
    "KILLED": AttemptState.KILLED,
}


class YarnLauncher:
    """Launches applications on YARN, see `Launcher`. The resource manager stores the tag with the application."""

    name = YARN
    can_reattach = True

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        addresses = resource_managers(settings.conf, os.environ)
        self._managers = [HttpApi(address) for address in addresses]
        self.place: str | None = ",".join(addresses)

    def launch(self, intent: Intent) -> Handle:
        submission = intent.details["submission"]
        tags = [one for one in submission.conf.get(_TAGS, "").split(",") if one]
        extra = {
            _TAGS: ",".join([*tags, intent.tag]),
            # A driver that YARN restarts would execute the user's code again, without a new attempt.
            "spark.yarn.maxAppAttempts": "1",
            # spark-submit ends once YARN has accepted the application. `watch` then watches the application.
            "spark.yarn.submit.waitAppCompletion": "false",
            **{f"spark.yarn.appMasterEnv.{k}": v for k, v in submission.environment.items()},
        }
        output = submit_to_cluster(intent, self._settings, extra)
        found = re.search(r"application_\d+_\d+", output)
        external_id = None if found is None else found[0]
        return Handle(intent.tag, external_id, self._link(external_id))

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        def ask() -> Sighting:
            answer = self._ask("GET", f"{_APPS}?applicationTags={quote(tag)}")
            apps = (answer["apps"] or {}).get("app") or []
            # Several applications may have the tag, so prefer an application that still runs.
            apps.sort(key=lambda app: app["state"] in ("FINISHED", "FAILED", "KILLED"))
            return self._sighting(tag, apps[0]) if apps else Absent()

        return answered(ask)

    def stop(self, handle: Handle) -> Sighting:
        def ask_to_stop() -> Sighting:
            sighting = self.find(handle.tag, handle.external_id)
            if not isinstance(sighting, Running):
                return sighting
            path = f"{_APPS}/{sighting.handle.external_id}/state"
            self._ask("PUT", path, {"state": "KILLED"})
            return self.find(handle.tag, handle.external_id)

        return answered(ask_to_stop)

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        return watch_by_asking(self.find, handle)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        # A standby manager redirects reads to the active one, and refuses writes.
        return ask_active(self._managers, lambda manager: manager.ask(method, path, body))

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
        return (
            None
            if external_id is None
            else f"{self._managers[0].address}/cluster/app/{external_id}"
        )
