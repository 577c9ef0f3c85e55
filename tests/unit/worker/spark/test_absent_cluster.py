"""A master or server that is away is waited for, within bounds."""

import socket
from datetime import timedelta

import pytest

from triggerer.config import SparkSettings
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.absent_cluster import await_cluster


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_master_that_comes_back_in_time_is_waited_for_and_the_wait_is_told() -> None:
    told: list[str | None] = []
    port = free_port()
    opened: list[socket.socket] = []

    def tell(reason: str | None) -> None:
        told.append(reason)
        if reason is not None:
            opened.append(socket.create_server(("127.0.0.1", port)))

    await_cluster(SparkSettings(master=f"spark://127.0.0.1:{port}"), tell)
    opened[0].close()
    assert told == [f"the Spark master spark://127.0.0.1:{port}, which does not answer", None]


def test_a_server_that_stays_away_is_an_error_that_names_the_setting() -> None:
    told: list[str | None] = []
    settings = SparkSettings(
        remote=f"sc://127.0.0.1:{free_port()}/;token=secret",
        cluster_patience=timedelta(seconds=0.1),
    )
    with pytest.raises(SubmitFailed) as caught:
        await_cluster(settings, told.append)
    assert "[spark] cluster_patience" in caught.value.message
    assert "secret" not in caught.value.message
    assert told[-1] is None


@pytest.mark.parametrize("master", ["local[2]", "yarn"])
def test_a_master_without_an_address_is_not_waited_for(master: str) -> None:
    await_cluster(SparkSettings(master=master), lambda reason: pytest.fail(str(reason)))


def test_with_a_patience_of_zero_the_error_comes_at_once() -> None:
    settings = SparkSettings(
        master=f"spark://127.0.0.1:{free_port()}", cluster_patience=timedelta(0)
    )
    with pytest.raises(SubmitFailed, match="does not answer"):
        await_cluster(settings, lambda reason: pytest.fail(str(reason)))
