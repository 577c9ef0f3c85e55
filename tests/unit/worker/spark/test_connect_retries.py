from datetime import timedelta

import pytest

from triggerer.worker.spark.sessions.connect import retries_within


@pytest.mark.parametrize(("patience_s", "retries"), [(0, 0), (0.05, 1), (4, 4), (60, 16)])
def test_the_client_asks_again_for_as_long_as_the_patience_lasts(
    patience_s: float, retries: int
) -> None:
    assert retries_within(timedelta(seconds=patience_s)) == retries
