"""Applications on a standalone cluster in cluster mode, through the master's REST server (`spark.master.rest.enabled`).

A submitted application is found again by its driver's id. If the id was not stored, the application's state is unknown
in two cases:

- The master has an active driver, because any driver may be the application's.
- The master's page lists the application, active or completed. An application's name ends with the launch's tag. But
  the page does not say which driver belongs to it, and only the driver's state tells whether the application has
  succeeded. Spark lists an application as finished even if its code raised an error.

A master that was restarted without a recovery mode lists neither the application nor its driver, and nothing on its
page tells when it was started. Then the launch counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.errors import SubmitFailed
from triggerer.worker.launchers.cluster_http import (
    HttpApi,
    NoAnswer,
    answered,
    ask_active,
    watch_by_asking,
)
from triggerer.worker.launchers.driver_logs import DriverLog
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
_WORKS: Final = {
    "SUBMITTED": "waits for a worker with room for its driver",
    "RUNNING": "running",
    "RELAUNCHING": "relaunching",
}
_REASONS: Final = {
    "KILLED": "somebody stopped its driver on the cluster",
    "ERROR": "the worker of its driver was lost, or could not start it",
}
_NOT_ALIVE: Final = "Current state is not alive"
"""A master answers with this text while it is on standby, or recovers its drivers."""
_REST_HINT: Final = (
    "start it with spark.master.rest.enabled=true; another port than 6066 goes into spark.master.rest.port of"
    " [spark] conf"
)
_FROM_THE_CLUSTER: Final = "Exception from the cluster:"


class StandaloneLauncher:
    """Launches applications on a standalone cluster, see `Launcher`."""

    name = STANDALONE
    can_reattach = True

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        conf = settings.conf
        rest = conf.get("spark.master.rest.port", _REST_PORT)
        page = conf.get("spark.master.ui.port", _PAGE_PORT)
        hosts = [endpoint.host for endpoint in master_endpoints(master_of(settings))]
        self._rests = [HttpApi(f"http://{host}:{rest}") for host in hosts]
        self._pages = [HttpApi(f"http://{host}:{page}") for host in hosts]
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
        application = submission.application
        if application.startswith("/"):
            # Spark reads the path as a URL, and a space in a URL is an error.
            application = Path(application).as_uri()
        request = {
            "action": "CreateSubmissionRequest",
            "appResource": application,
            "mainClass": submission.main_class,
            "appArgs": list(submission.arguments),
            "clientSparkVersion": version("pyspark"),
            "environmentVariables": dict(submission.environment),
            "sparkProperties": {
                **submission.conf,
                "spark.app.name": submission.name,
                "spark.master": master_of(self._settings),
                "spark.submit.deployMode": "cluster",
                # A driver that the master restarts would execute the user's code again, without a new attempt.
                "spark.driver.supervise": "false",
                "spark.jars": ",".join(
                    filter(None, (submission.conf.get("spark.jars"), application))
                ),
            },
        }
        try:
            answer = self._ask("POST", "create", request)
        except NoAnswer as error:
            hint = None if error.status else _REST_HINT
            raise SubmitFailed(f"the master takes no applications: {error}", hint=hint) from error
        if not answer.get("success"):
            raise SubmitFailed(f"the master refused the application: {answer.get('message')}")
        return Handle(intent.tag, answer["submissionId"], self._pages[0].address)

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        def ask() -> Sighting:
            if external_id is None:
                return self._find_without_id(tag)
            answer = self._ask("GET", f"status/{external_id}")
            return self._sighting(Handle(tag, external_id, self._pages[0].address), answer)

        return answered(ask)

    def stop(self, handle: Handle) -> Sighting:
        def ask_to_stop() -> Sighting:
            if handle.external_id is not None:
                self._ask("POST", f"kill/{handle.external_id}", {})
            return self.find(handle.tag, handle.external_id)

        return answered(ask_to_stop)

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        return watch_by_asking(self.find, handle)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        path = f"{_SUBMISSIONS}/{path}"
        return ask_active(
            self._rests,
            lambda rest: rest.ask(method, path, body),
            lambda answer: _NOT_ALIVE not in str(answer.get("message")),
        )

    def _state(self) -> Any:
        """Return the content of the master's web page, as JSON."""
        return ask_active(
            self._pages,
            lambda page: page.ask("GET", "/json/"),
            lambda state: state["status"] == "ALIVE",
        )

    def _sighting(self, handle: Handle, answer: Mapping[str, Any]) -> Sighting:
        state = answer.get("driverState")
        if state in _WORKS:
            return Running(handle, _WORKS[state])
        if state in _ENDS:
            return self._ended(handle, str(state), answer)
        if not answer.get("success"):
            # A restarted master has forgotten its drivers. But a Spark worker ends a driver only on the master's
            # request, so a forgotten driver may still be at work.
            return Unknown(f"the master no longer knows the driver {handle.external_id}")
        return Unknown(f"the master says {state}")

    def _ended(self, handle: Handle, state: str, answer: Mapping[str, Any]) -> Ended:
        message = str(answer.get("message") or "").removeprefix(_FROM_THE_CLUSTER).strip()
        reason = message.splitlines()[0] if message else _REASONS.get(state)
        if state != "FAILED":
            return Ended(handle, _ENDS[state], reason)
        # The master does not say why a driver failed, but the driver's log does.
        log = self._log(str(handle.external_id), answer.get("workerId"))
        if log is None:
            return Ended(handle, _ENDS[state], reason)
        return Ended(replace(handle, link=log.link), _ENDS[state], log.cause() or reason)

    def _log(self, driver: str, worker: str | None) -> DriverLog | None:
        try:
            workers = self._state()["workers"]
        except NoAnswer:
            return None
        pages = {one["id"]: one["webuiaddress"] for one in workers}
        return DriverLog(pages[worker], driver) if worker in pages else None

    def _find_without_id(self, tag: str) -> Sighting:
        """Look for a driver without its id, because the attempt died before the id was stored."""
        state = self._state()
        for kind, verb in (("activeapps", "works"), ("completedapps", "has ended")):
            for app in state[kind]:
                if str(app.get("name", "")).endswith(tag):
                    reason = f"the application {app['id']} {verb}, and the master does not name its driver"
                    return Unknown(reason)
        if drivers := state["activedrivers"]:
            return Unknown(f"one of {len(drivers)} drivers on the master may be the application")
        return Absent()
