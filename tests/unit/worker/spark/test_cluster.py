import pytest

from triggerer.config import SparkSettings
from triggerer.errors import ConfigurationError
from triggerer.worker.spark.sessions.cluster import describe_need, needs_cluster


def need(
    master: str = "spark://h:7077",
    *,
    tasks: int = 2,
    cores: str | None = "1",
    driver_host: str = "10.0.0.1",
) -> str:
    return describe_need(master, tasks=tasks, cores=cores, memory="1g", driver_host=driver_host)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (SparkSettings(), False),
        (SparkSettings(master="local[4]"), False),
        (SparkSettings(mode="connect", remote="sc://h"), False),
        (SparkSettings(master="spark://h:7077"), True),
        (SparkSettings(conf={"spark.master": "yarn"}), True),
        (SparkSettings(master="k8s://api"), True),
    ],
)
def test_executors_come_from_a_cluster_or_are_this_machine(
    settings: SparkSettings, needed: bool
) -> None:
    assert needs_cluster(settings) is needed


def test_a_contradiction_is_refused_as_it_is_elsewhere() -> None:
    with pytest.raises(ConfigurationError):
        needs_cluster(SparkSettings(mode="conect"))


def test_a_need_says_where_what_is_asked_for_and_what_to_look_at() -> None:
    assert need() == (
        "an executor on spark://h:7077 for 2 tasks; it needs 1 core and 1g of memory"
        " (the cluster's web UI shows who holds its cores, and how large its workers are)"
    )
    assert " 1 task; it needs 4 cores and " in need(tasks=1, cores="4")
    assert "it needs all cores of a worker and " in need(cores=None)


@pytest.mark.parametrize("driver_host", ["127.0.0.1", "127.0.1.1", "localhost", "::1"])
def test_a_driver_that_only_this_machine_reaches_is_named(driver_host: str) -> None:
    for master in ("spark://h:7077", "spark://127.0.0.1:7077,h:7077", "yarn", "k8s://api"):
        assert f"the driver at {driver_host}: set spark.driver.host" in need(
            master, driver_host=driver_host
        )
    # A cluster on this machine reaches it.
    assert "web UI" in need("spark://127.0.0.1:7077", driver_host=driver_host)


@pytest.mark.parametrize("driver_host", ["10.0.0.1", "driver.example", ""])
def test_a_driver_with_an_address_of_its_own_is_not_to_blame(driver_host: str) -> None:
    assert "web UI" in need(driver_host=driver_host)
