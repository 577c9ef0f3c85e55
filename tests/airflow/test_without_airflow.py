"""The adapter without Airflow. One test runs the other modules' tests in an environment that has Airflow."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triggerer.errors import DagError, PluginError
from watchers.airflow import AirflowEventTrigger

_PYTHON = os.environ.get("TRIGGERER_AIRFLOW_PYTHON")
_HAS_AIRFLOW = importlib.util.find_spec("airflow") is not None


def test_the_plugin_imports_no_airflow() -> None:
    code = "import sys, watchers.airflow; sys.exit(any(m.split('.')[0] == 'airflow' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(_HAS_AIRFLOW, reason="Airflow is installed here")
def test_without_airflow_the_error_says_what_to_install() -> None:
    with pytest.raises(PluginError, match="install apache-airflow"):
        AirflowEventTrigger(object())


def test_a_class_outside_the_provider_packages_is_not_imported() -> None:
    with pytest.raises(PluginError, match="may not be loaded"):
        AirflowEventTrigger(classpath="os.path.PathLike", arguments={})


class WithoutWraps(AirflowEventTrigger):
    pass


def test_a_subclass_without_wraps_is_refused_because_the_service_would_run_the_base_class() -> None:
    with pytest.raises(DagError, match="WithoutWraps would run as AirflowEventTrigger") as refused:
        WithoutWraps(object())
    assert refused.value.hint == "set `wraps` in WithoutWraps to the class of the Airflow trigger"


@pytest.mark.skipif(_HAS_AIRFLOW, reason="this is the environment with Airflow")
@pytest.mark.skipif(
    not _PYTHON,
    reason="TRIGGERER_AIRFLOW_PYTHON names no Python with Airflow (see docs/reference/airflow-triggers.md)",
)
def test_in_an_environment_with_airflow_its_triggers_run(tmp_path: Path) -> None:
    command = [
        str(_PYTHON), "-m", "pytest", "-p", "no:cacheprovider", "-W", "default",
        "tests/airflow/test_adapter.py", "tests/airflow/test_kafka_provider.py", "tests/airflow/test_service.py",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "AIRFLOW_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
