"""Which runs need a driver of their own."""

import pytest

from triggerer.config import SparkSettings
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.own_driver import DagSettings

SESSIONS = DagSettings({"spark.sql.shuffle.partitions": "7"}, ())
JVMS = DagSettings({"spark.executor.memory": "2g"}, ())
PACKAGES = DagSettings({}, ("a:b:1",))


@pytest.mark.parametrize("settings", [SparkSettings(), SparkSettings(master="spark://h:7077")])
def test_a_dag_with_settings_of_a_jvm_or_packages_needs_a_driver_of_its_own(
    settings: SparkSettings,
) -> None:
    assert JVMS.need_own_driver(settings)
    assert PACKAGES.need_own_driver(settings)
    assert not SESSIONS.need_own_driver(settings)
    assert not DagSettings({}, ()).need_own_driver(settings)


def test_in_the_mode_submit_every_run_has_one() -> None:
    assert DagSettings({}, ()).need_own_driver(SparkSettings(mode="submit"))


def test_a_spark_connect_server_cannot_have_another_jvm() -> None:
    server = SparkSettings(remote="sc://h")
    assert not SESSIONS.need_own_driver(server)
    with pytest.raises(SubmitFailed, match=r"cannot have spark\.executor\.memory"):
        JVMS.need_own_driver(server)
    with pytest.raises(SubmitFailed, match="cannot have spark_packages"):
        PACKAGES.need_own_driver(server)
