"""Functions that resolve the deliveries of a case, and functions that read the results."""

from __future__ import annotations

from triggerer.abc import AdvanceOutcome
from triggerer.testing.conformance.driver import ACKED, FAILED, Delivery, Driver, Resolve


def nothing(_: Delivery) -> None:
    """Leave every delivery unresolved."""


def all_but(held: str) -> Resolve:
    """Accept all values except this one, which stays unresolved."""
    return lambda delivery: None if delivery.value == held else ACKED


def failing(value: str) -> Resolve:
    """Fail this value at each delivery, and accept the others."""
    return lambda delivery: FAILED if delivery.value == value else ACKED


def once(value: str, outcome: AdvanceOutcome) -> Resolve:
    """Resolve this value with the outcome at its first delivery, and never again. Accept the other values."""
    seen = 0

    def resolve(delivery: Delivery) -> AdvanceOutcome | None:
        nonlocal seen
        if delivery.value != value:
            return ACKED
        seen += 1
        return outcome if seen == 1 else None

    return resolve


def failing_once(value: str) -> Resolve:
    """Fail this value at its first delivery. Accept its later deliveries and all other values."""
    has_failed = False

    def resolve(delivery: Delivery) -> AdvanceOutcome:
        nonlocal has_failed
        if delivery.value == value and not has_failed:
            has_failed = True
            return FAILED
        return ACKED

    return resolve


def first(value: str, outcome: AdvanceOutcome, times: int) -> Resolve:
    """Resolve this value with the outcome at its first `times` deliveries. Accept everything else."""
    seen = 0

    def resolve(delivery: Delivery) -> AdvanceOutcome:
        nonlocal seen
        if delivery.value != value or seen == times:
            return ACKED
        seen += 1
        return outcome

    return resolve


def gated(gate: list[bool]) -> Resolve:
    """Leave every delivery unresolved until `gate[0]` is true, then accept all."""

    def resolve(_: Delivery) -> AdvanceOutcome | None:
        return ACKED if gate[0] else None

    return resolve


def outcomes(driver: Driver) -> list[tuple[str, AdvanceOutcome]]:
    """The advanced values in order, each with its outcome. A redelivered value appears again."""
    return [(delivery.value, outcome) for delivery, outcome in driver.advanced]


def acked(driver: Driver) -> set[str]:
    """The values that were advanced as acked, and neither failed nor rejected."""
    return {value for value, outcome in outcomes(driver) if outcome.is_clean}


def failed(driver: Driver) -> set[str]:
    """The values that were advanced as failed."""
    return {value for value, outcome in outcomes(driver) if outcome.failed}
