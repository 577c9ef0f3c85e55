"""The judgement of outcomes, and the delays of failed messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.abc import AdvanceOutcome
from triggerer.pluginkit.delivery import DeliveryPolicy, Judgement, judge


@pytest.mark.parametrize(
    ("acked", "failed", "rejected", "judgement"),
    [
        (1, 0, 0, Judgement.ACK),
        (1, 0, 1, Judgement.REJECT),
        (0, 0, 1, Judgement.REJECT),
        (1, 1, 1, Judgement.FAIL),
        (0, 0, 0, Judgement.FAIL),
    ],
)
def test_a_failure_outweighs_a_rejection_and_a_message_that_nobody_saw_has_failed(
    acked: int, failed: int, rejected: int, judgement: Judgement
) -> None:
    assert judge(AdvanceOutcome(acked, failed, rejected)) is judgement


@given(st.integers(0, 200), st.floats(0.001, 5), st.floats(5, 600))
def test_the_delay_stays_below_a_bound_that_doubles_up_to_the_longest(
    failures: int, first_s: float, longest_s: float
) -> None:
    policy = DeliveryPolicy(redelivery_delay_s=first_s, redelivery_delay_max_s=longest_s)
    bound = min(longest_s, first_s * 2 ** min(max(failures - 1, 0), 32))
    assert 0 <= policy.delay(failures) <= bound


def test_the_last_failed_delivery_is_the_one_that_reaches_the_limit() -> None:
    policy = DeliveryPolicy(max_deliveries=3)
    assert [policy.is_exhausted(count) for count in (1, 2, 3, 4)] == [False, False, True, True]
    assert not DeliveryPolicy(max_deliveries=None).is_exhausted(10_000)
