"""Runs `spark-submit` for an application whose driver starts on the cluster."""

from __future__ import annotations

import logging
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from triggerer.errors import SubmitFailed
from triggerer.worker.launchers.protocol import Intent
from triggerer.worker.spark.jvm.driver_deaths import cause_in
from triggerer.worker.spark.sessions.classic import Installation
from triggerer.worker.submit.submission import Submission, submit_command, submit_environment

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

logger = logging.getLogger("triggerer.run")

_SUBMIT_S: Final = 600.0
"""The time for `spark-submit`, which may download packages and upload files."""


def submit_to_cluster(intent: Intent, settings: SparkSettings, extra: dict[str, str]) -> str:
    """Submit the application, and return the output of `spark-submit` once the cluster has accepted it.

    Args:
        intent: Its details have the `submission` and the `installation`.
        extra: Settings of the launcher, such as the tag. They override the user's settings.
    Raises:
        SubmitFailed: `spark-submit` cannot be started, failed, or did not end in time. After a timeout, the cluster may
            have the application nevertheless.
    """
    submission: Submission = intent.details["submission"]
    installation: Installation = intent.details["installation"]
    whole = replace(submission, conf={**submission.conf, **extra})
    variables = submit_environment(whole, settings, installation)
    with submit_command(whole, settings, installation) as command:
        logger.info("spark-submit %s, as %s", submission.application, submission.name)
        try:
            done = subprocess.run(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SUBMIT_S,
                check=False,
            )
        except OSError as error:
            raise SubmitFailed(f"spark-submit cannot be started: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise SubmitFailed(f"spark-submit did not end within {_SUBMIT_S:g} s") from error
    output = done.stdout + done.stderr
    if done.returncode != 0:
        logger.error("spark-submit said:\n%s", output)
        reason = cause_in(output.splitlines()) or f"it ended with code {done.returncode}"
        # The client of Kubernetes appends its status object, which repeats the message.
        reason = reason.partition(" Received status: ")[0]
        raise SubmitFailed(f"spark-submit was refused: {reason}")
    return output
