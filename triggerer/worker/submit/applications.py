"""Executes a `SparkApplication` task: submits the application, waits for its end, and stops it with the task."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunOrder
from triggerer.domain.launches import CONNECT as CONNECT_LAUNCHER
from triggerer.domain.launches import Launch, session_id_of, task_tag
from triggerer.errors import SubmitFailed
from triggerer.worker.launchers import Handle, Unknown, launcher_named
from triggerer.worker.spark.sessions.absent_cluster import await_cluster
from triggerer.worker.spark.sessions.classic import find_installation
from triggerer.worker.spark.sessions.reachability import with_session
from triggerer.worker.spark.settings import CONNECT, mode_of
from triggerer.worker.submit.child import run_child
from triggerer.worker.submit.following import end_earlier_try, follow, reporter, stopped
from triggerer.worker.submit.submission import (
    Submission,
    application_conf,
    application_path,
    submit_command,
    submit_environment,
)

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

logger = logging.getLogger("triggerer.run")

_NAMES: Final = ("dag_id", "run_id", "task_id", "run_token")


@dataclass(frozen=True, slots=True)
class ApplicationSubmitter:
    """Submits the applications of one attempt of a run."""

    settings: SparkSettings
    home: Path
    dags_folder: Path
    order: RunOrder
    spark_conf: Mapping[str, str]
    """The DAG's settings for all its applications. The DAG's packages are in `spark_packages`."""
    spark_packages: tuple[str, ...]
    on_launch: Callable[[Launch], None]
    tell_absence: Callable[[str | None], None]
    """Receives why the run waits, and None when the wait is over, see `await_cluster` and `end_earlier_try`."""
    _tries: dict[str, int] = field(default_factory=dict)
    _open: dict[str, Launch] = field(default_factory=dict)
    """The newest report of each launch that has not ended, by tag. A task's next try first ends the task's launches."""

    def submit(
        self,
        task_id: str,
        application: str,
        *,
        arguments: Sequence[Any],
        conf: Mapping[str, str],
        packages: Sequence[str],
        main_class: str | None,
    ) -> None:
        """Return once the application has succeeded.

        Raises:
            SubmitFailed: The application could not be submitted.
            RunFailed: The application failed.
        """
        path = application_path(application, self.dags_folder)
        self._tries[task_id] = self._tries.get(task_id, 0) + 1
        tag = task_tag(self.order.tag, task_id, self._tries[task_id])
        values = (
            self.order.dag_id,
            self.order.run_id,
            task_id,
            self.order.output_token(task_id),
        )
        environment = {
            f"TRIGGERER_{name.upper()}": value for name, value in zip(_NAMES, values, strict=True)
        }
        own = {**self.spark_conf, **conf}
        all_packages = (*self.spark_packages, *packages)
        await_cluster(self.settings, self.tell_absence)
        self._end_earlier_tries(task_id)
        if mode_of(self.settings) == CONNECT:
            self._refuse_for_connect(path, own, all_packages)
            self._run_on_server(task_id, tag, path, arguments, environment)
            return
        installation = find_installation(self.home)
        submission = Submission(
            tag=tag,
            name=f"{own.get('spark.app.name') or f'{self.order.dag_id}.{task_id}'} {tag}",
            application=path,
            arguments=tuple(map(str, arguments)),
            conf=application_conf(self.settings, installation, own, all_packages),
            main_class=main_class,
            environment=environment,
        )
        if submission.is_cluster_mode:
            follow(
                submission,
                self.settings,
                installation,
                task_id,
                self.order.former,
                self._report,
            )
            return
        variables = submit_environment(submission, self.settings, installation)
        with submit_command(submission, self.settings, installation) as command:
            logger.info("spark-submit %s, as %s", path, submission.name)
            run_child(command, variables, what=f"the application {application}")

    def _run_on_server(
        self,
        task_id: str,
        tag: str,
        path: str,
        arguments: Sequence[Any],
        environment: Mapping[str, str],
    ) -> None:
        """Run a Python file as a client of the Spark Connect server.

        The session's id is computed from the tag, so other processes can find the session.
        """
        remote = self.settings.remote or ""
        handle = Handle(tag, session_id_of(tag))
        launcher = launcher_named(CONNECT_LAUNCHER, self.settings)

        tell = reporter(launcher, task_id, self._report)
        kept = {name: text for name, text in os.environ.items() if "TRIGGERER__" not in name}
        session = {"SPARK_REMOTE": with_session(remote, session_id_of(tag))}
        tell(handle, AttemptState.RUNNING)
        try:
            command = [sys.executable, path, *map(str, arguments)]
            run_child(command, {**kept, **environment, **session}, what=f"the application {path}")
        except BaseException:
            # If the session is not released, the server continues the operations of its client, which is gone.
            sighting = stopped(launcher, handle)
            if isinstance(sighting, Unknown):
                tell(handle, AttemptState.UNKNOWN, sighting.reason)
            else:
                tell(handle, AttemptState.FAILED)
            raise
        tell(handle, AttemptState.SUCCESS)

    def _report(self, launch: Launch) -> None:
        if launch.state.has_ended:
            self._open.pop(launch.tag, None)
        else:
            self._open[launch.tag] = launch
        self.on_launch(launch)

    def _end_earlier_tries(self, task_id: str) -> None:
        for launch in [one for one in list(self._open.values()) if one.task_id == task_id]:
            launcher = launcher_named(launch.launcher, self.settings)
            end_earlier_try(
                launcher,
                launch,
                self._report,
                self.tell_absence,
                patience=self.settings.cluster_patience,
            )

    def _refuse_for_connect(
        self, path: str, conf: Mapping[str, str], packages: Sequence[str]
    ) -> None:
        if not path.endswith(".py"):
            raise SubmitFailed(
                "a jar cannot be submitted to a Spark Connect server",
                hint='set [spark] mode = "submit" and a master, or make the application a Python file',
            )
        if conf or packages:
            what = "packages" if packages else f"the setting {next(iter(conf))}"
            raise SubmitFailed(
                f"an application on a Spark Connect server cannot have {what} of its own",
                hint="set it where the server is started, or in the application's session",
            )
