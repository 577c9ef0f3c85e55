"""Applications on a standalone cluster in cluster mode, through the master's REST server (`spark.master.rest.enabled`).

The master gives each driver an id, and has no tags. So the application's name contains the tag, and the master's page
tells whether an application with this name has begun to work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.errors import SubmitFailed
from triggerer.worker.launchers.places import HttpPlace, NoAnswer, answered, watch_by_asking
from triggerer.worker.launchers.protocol import (
    Absent,
    Ended,
    Handle,
    Intent,
    Running,
    Sighting,
    Unknown,
)
from triggerer.worker.spark.sessions.reachability import master_endpoints
from triggerer.worker.spark.settings import master_of

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

STANDALONE: Final = "standalone"
_REST_PORT: Final = "6066"
_PAGE_PORT: Final = "8080"
_SUBMISSIONS: Final = "/v1/submissions"
_ENDS: Final = {
    "FINISHED": AttemptState.SUCCESS,
    "KILLED": AttemptState.KILLED,
    "FAILED": AttemptState.FAILED,
    "ERROR": AttemptState.FAILED,
}
_WORKS: Final = ("SUBMITTED", "RUNNING", "RELAUNCHING", "QUEUED")


class StandaloneLauncher:
    """See `Launcher`."""

    name = STANDALONE
    can_reattach = True

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        endpoint = master_endpoints(master_of(settings))[0]
        conf = settings.conf
        self._rest = HttpPlace(
            f"http://{endpoint.host}:{conf.get('spark.master.rest.port', _REST_PORT)}"
        )
        self._page = HttpPlace(
            f"http://{endpoint.host}:{conf.get('spark.master.ui.port', _PAGE_PORT)}"
        )
        self.place: str | None = master_of(settings)

    def launch(self, intent: Intent) -> Handle:
        submission = intent.details["submission"]
        if submission.is_python:
            raise SubmitFailed(
                "a standalone cluster runs no Python drivers",
                hint='take "spark.submit.deployMode" = "cluster" out, or submit a jar',
            )
        if submission.main_class is None:
            raise SubmitFailed(
                "a standalone cluster cannot look into a jar for its main class",
                hint="set main_class",
            )
        request = {
            "action": "CreateSubmissionRequest",
            "appResource": submission.application,
            "mainClass": submission.main_class,
            "appArgs": list(submission.arguments),
            "clientSparkVersion": version("pyspark"),
            "environmentVariables": dict(submission.environment),
            "sparkProperties": {
                **submission.conf,
                "spark.app.name": submission.name,
                "spark.master": master_of(self._settings),
                "spark.submit.deployMode": "cluster",
                # If the master restarted the driver, the run would have a second attempt.
                "spark.driver.supervise": "false",
                "spark.jars": ",".join(
                    filter(None, (submission.conf.get("spark.jars"), submission.application))
                ),
            },
        }
        try:
            answer = self._rest.ask("POST", f"{_SUBMISSIONS}/create", request) or {}
        except NoAnswer as error:
            raise SubmitFailed(
                f"the master takes no applications: {error}",
                hint="start it with spark.master.rest.enabled=true; another port than 6066 goes into"
                " spark.master.rest.port of [spark] conf",
            ) from error
        if not answer.get("success"):
            raise SubmitFailed(f"the master refused the application: {answer.get('message')}")
        return Handle(intent.tag, answer["submissionId"], self._page.address)

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        def look() -> Sighting:
            if external_id is None:
                return self._find_by_name(tag)
            answer = self._rest.ask("GET", f"{_SUBMISSIONS}/status/{external_id}") or {}
            return self._sighting(Handle(tag, external_id, self._page.address), answer)

        return answered(look)

    def stop(self, handle: Handle) -> Sighting:
        def look() -> Sighting:
            if handle.external_id is None:
                return self._find_by_name(handle.tag)
            self._rest.ask("POST", f"{_SUBMISSIONS}/kill/{handle.external_id}", {})
            return self.find(handle.tag, handle.external_id)

        return answered(look)

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        return watch_by_asking(self.find, handle)

    def _sighting(self, handle: Handle, answer: Mapping[str, Any]) -> Sighting:
        state, said = answer.get("driverState"), answer.get("message")
        if state in _ENDS:
            return Ended(handle, _ENDS[state], said)
        if state in _WORKS:
            return Running(handle, str(state).lower())
        if not answer.get("success") or state == "NOT_FOUND":
            # The master has forgotten its drivers after a restart. A driver may still work, because its Spark worker
            # ends it only when the master tells it to.
            return Unknown(f"the master no longer knows the driver {handle.external_id}")
        return Unknown(f"the master says {state}")

    def _find_by_name(self, tag: str) -> Sighting:
        """Look for an application by its name, because the attempt died before its driver's id was stored."""
        page = self._page.ask("GET", "/json/") or {}
        for app in page.get("activeapps", []):
            if str(app.get("name", "")).endswith(tag):
                reason = (
                    f"the application {app['id']} works, and the master does not tell its driver"
                )
                return Unknown(reason)
        for app in page.get("completedapps", []):
            if str(app.get("name", "")).endswith(tag):
                state = _ENDS.get(app.get("state", ""), AttemptState.LOST)
                return Ended(Handle(tag, app["id"], self._page.address), state)
        drivers = page.get("activedrivers", [])
        if drivers:
            return Unknown(f"one of {len(drivers)} drivers on the master may be the application")
        return Absent()
