"""The adapter of Airflow's producers, as far as it needs no Airflow."""

from types import SimpleNamespace
from typing import Any

import pytest

from watchers.airflow.producer import AirflowProducer


@pytest.mark.parametrize(
    ("methods", "identifies"), [({}, False), ({"get_idempotency_key": lambda payload: "k"}, True)]
)
def test_it_is_known_whether_a_producer_has_keys(methods: Any, identifies: bool) -> None:
    airflow: Any = None
    producer = AirflowProducer(SimpleNamespace(**methods), airflow)
    assert producer.identifies is identifies
    assert producer.get_idempotency_key("payload") == ("k" if identifies else None)
