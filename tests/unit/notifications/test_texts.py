"""Messages tell an engineer on call what is wrong, since when, why, and where to look."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from triggerer.domain.notifications import Event, Occurrence
from triggerer.notifications.texts import Writer
from triggerer.observability.redaction import remember_secret

SINCE = datetime(2026, 1, 1, 8, 30, tzinfo=UTC)
WRITER = Writer("prod-1", "https://triggerer.example")


def test_a_failing_watcher() -> None:
    message = WRITER.write(
        Occurrence(
            Event.WATCHER_FAILING,
            "7",
            "s3://raw/orders/kafka",
            SINCE,
            error="BrokerUnavailable: kafka-1:9092 does not answer\nmore",
        )
    )
    assert message.title == "watcher s3://raw/orders/kafka is failing"
    assert message.severity == "failure"
    assert message.body.splitlines() == [
        "Failing since 2026-01-01 08:30:00Z.",
        "Error: BrokerUnavailable: kafka-1:9092 does not answer",
        "Look: triggerer watchers show s3://raw/orders/kafka",
        "Page: https://triggerer.example/assets?name=s3%3A%2F%2Fraw%2Forders",
        "From: prod-1",
    ]


def test_a_watcher_that_works_again() -> None:
    message = WRITER.write(
        Occurrence(Event.WATCHER_FAILING, "7", "orders/kafka", SINCE, is_over=True)
    )
    assert (message.title, message.severity) == ("watcher orders/kafka works again", "success")
    assert message.body.startswith("It had been failing since 2026-01-01 08:30:00Z.\n")


def test_parked_messages() -> None:
    message = Writer("prod-1", "").write(
        Occurrence(Event.PARKED, "7", "my orders/kafka", SINCE, count=3, error="KeyError: 'id'")
    )
    assert message.title == "3 messages of watcher my orders/kafka are parked"
    assert message.body.splitlines() == [
        "The first was parked at 2026-01-01 08:30:00Z.",
        "Error: KeyError: 'id'",
        "Look: triggerer watchers parked list --watcher 'my orders/kafka'",
        "From: prod-1",
    ]


def test_one_failed_run_and_several() -> None:
    one = Occurrence(Event.RUN_FAILED, "sales", "sales", SINCE, run_id="manual__1+00:00")
    assert WRITER.write(one).title == "DAG sales: run manual__1+00:00 failed"
    assert "Look: triggerer runs logs sales manual__1+00:00" in WRITER.write(one).body
    page = "Page: https://triggerer.example/dags/sales/runs/manual__1%2B00%3A00"
    assert page in WRITER.write(one).body
    many = Occurrence(Event.RUN_FAILED, "sales", "sales", SINCE, count=5, run_id="r5")
    assert WRITER.write(many).title == "DAG sales: 5 runs failed"
    assert "Look: triggerer runs list --dag sales --state failed" in WRITER.write(many).body


def test_a_digest_counts_lists_and_ends() -> None:
    many = [
        Occurrence(Event.WATCHER_FAILING, str(n), f"orders/{n}", SINCE, error="refused")
        for n in range(20)
    ]
    over = Occurrence(Event.WATCHER_FAILING, "x", "orders/x", SINCE, is_over=True)
    message = WRITER.write_digest([*many, over])
    assert message.title == "triggerer: 20 failing watchers, 1 watchers that work again"
    lines = message.body.splitlines()
    assert lines[0] == "- watcher orders/0 is failing, 2026-01-01 08:30:00Z: refused"
    assert lines[15:] == [
        "- and 6 more",
        "Look: triggerer watchers list",
        "Page: https://triggerer.example/",
        "From: prod-1",
    ]


@pytest.mark.parametrize(("count", "more"), [(2, []), (15, []), (16, ["- and 1 more"])])
def test_a_digest_counts_what_it_leaves_out(count: int, more: list[str]) -> None:
    many = [Occurrence(Event.WATCHER_FAILING, str(n), f"orders/{n}", SINCE) for n in range(count)]
    lines = WRITER.write_digest(many).body.splitlines()
    assert [line for line in lines if line.startswith("- and ")] == more
    assert sum(line.startswith("- watcher ") for line in lines) == min(count, 15)


def test_a_message_shows_no_secret() -> None:
    remember_secret("hunter22-known")
    error = "refused: password=by-position and hunter22-known"
    message = WRITER.write(Occurrence(Event.RUN_FAILED, "d", "d", SINCE, error=error, run_id="r"))
    assert "Error: refused: password=*** and ***" in message.body
