"""The demo's steps, each on its own."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from triggerer.demo.accounts import committed_offsets, parquet_checks
from triggerer.demo.broker import MockBroker
from triggerer.demo.checks import Check
from triggerer.demo.data import FLIGHTS, WEATHER, Dataset, Outgoing, load_dataset
from triggerer.demo.flow import split_live
from triggerer.demo.home import choose_home, make_home
from triggerer.demo.progress import ANSWER, JOIN, awaited, failed_runs, is_idle
from triggerer.domain.runs import RunState
from triggerer.errors import ConfigurationError
from triggerer.store.listing.counts import Counts


@pytest.fixture(scope="module")
def two_months() -> Dataset:
    return load_dataset(whole_year=False)


class TestDataset:
    """Two months of real rows, as messages."""

    def test_each_row_is_one_message_in_time_order(self, two_months: Dataset) -> None:
        messages = two_months.messages
        assert len(messages) == two_months.flights + two_months.weather == 56_191
        hours = [orjson.loads(message.value)["time_hour"] for message in messages]
        assert hours == sorted(hours)

    def test_every_row_is_told_from_every_other(self, two_months: Dataset) -> None:
        seen = {(m.topic, orjson.loads(m.value)["id"]) for m in two_months.messages}
        assert len(seen) == len(two_months.messages)

    def test_no_message_holds_what_json_has_not(self, two_months: Dataset) -> None:
        assert not any(b"NaN" in message.value for message in two_months.messages)

    def test_the_summary_names_period_and_numbers(self, two_months: Dataset) -> None:
        assert "January and February 2013" in two_months.summary
        assert "51,955 flights" in two_months.summary


def outgoing(topic: str, number: int) -> Outgoing:
    return Outgoing(topic, "k", b"%d" % number)


def test_the_last_of_both_topics_are_held_for_the_live_part() -> None:
    messages = [outgoing(topic, n) for n in range(10) for topic in (FLIGHTS, FLIGHTS, WEATHER)]
    backlog, live = split_live(messages, 3)
    assert len(backlog) + 2 * len(live) == len(messages)
    assert {id(m) for m in backlog}.isdisjoint(id(m) for pair in live for m in pair)
    assert [(flight.topic, report.topic) for flight, report in live] == [(FLIGHTS, WEATHER)] * 3
    assert [report.value for _, report in live] == [b"7", b"8", b"9"]


class TestIdle:
    """When the demo may publish the next message, or end."""

    def test_nothing_at_all_is_idle(self) -> None:
        assert is_idle(Counts())

    def test_events_that_wait_on_one_side_only_are_idle(self) -> None:
        assert is_idle(Counts(waiting={(JOIN, "flights"): 3}))

    def test_events_that_wait_on_both_sides_are_about_to_become_a_run(self) -> None:
        assert not is_idle(Counts(waiting={(JOIN, "flights"): 3, (JOIN, "weather"): 1}))

    def test_events_that_wait_for_the_answer_are_about_to_become_a_run(self) -> None:
        assert not is_idle(Counts(waiting={(ANSWER, "delays"): 1}))

    @pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING])
    def test_a_run_that_has_not_ended_is_not_idle(self, state: RunState) -> None:
        assert not is_idle(Counts(runs={(JOIN, state): 1, (ANSWER, RunState.SUCCESS): 2}))

    def test_runs_that_ended_badly_are_counted(self) -> None:
        runs = {(JOIN, RunState.FAILED): 1, (ANSWER, RunState.CANCELLED): 2}
        assert failed_runs(Counts(runs={**runs, (JOIN, RunState.SUCCESS): 5})) == 3


class TestAwaited:
    """The demo names the step that it waits for."""

    @staticmethod
    def after(**counts: Any) -> str | None:
        """Return the awaited step when three messages were published and have asset events."""
        return awaited(Counts(events={"flights": 2, "weather": 1}, **counts), 3)

    def test_messages_come_first(self) -> None:
        queued = {(JOIN, RunState.QUEUED): 1}
        assert awaited(Counts(events={"flights": 2}, runs=queued), 3) == (
            "waiting for every message to become an asset event"
        )

    def test_then_somebody_has_to_make_a_run_of_them(self) -> None:
        waiting = {(JOIN, "flights"): 2, (JOIN, "weather"): 1}
        assert self.after(waiting=waiting) == "waiting for the scheduler to queue a run"

    @pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING])
    def test_no_task_begins_before_spark_has_started(self, state: RunState) -> None:
        assert self.after(runs={(JOIN, state): 1}) == "waiting for Spark to start"

    def test_the_work_is_told_while_spark_is_at_it(self) -> None:
        both = {(JOIN, RunState.RUNNING): 1, (ANSWER, RunState.RUNNING): 1}
        joining = {(JOIN, RunState.RUNNING): 1, (ANSWER, RunState.QUEUED): 1}
        assert self.after(runs=joining, tasks=1) == "Spark joins flights with weather"
        told = self.after(runs=both, tasks=2)
        assert told == "Spark joins flights with weather and works out the answer"
        # The text has to fit on a terminal, together with the demo's part and the seconds.
        assert len(f"live, 5 of 5: {told} (100 s)") <= 80

    def test_a_run_that_nobody_has_taken_waits_for_a_worker(self) -> None:
        runs = {(JOIN, RunState.SUCCESS): 1, (ANSWER, RunState.QUEUED): 1}
        assert self.after(runs=runs, tasks=1) == "waiting for a worker to take a run"

    def test_nothing_is_waited_for_when_all_is_through(self) -> None:
        assert self.after(runs={(JOIN, RunState.SUCCESS): 1}, tasks=1) is None


class TestHome:
    """A folder of its own for each demo."""

    def test_a_folder_with_something_in_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "mine").touch()
        with pytest.raises(ConfigurationError, match="not an empty folder"):
            choose_home(tmp_path)

    def test_two_demos_in_one_folder_have_two_homes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        home = choose_home(None)
        assert home.parent == tmp_path / ".triggerer-demo"
        make_home(home, bootstrap_servers="h:1")
        assert sorted(file.name for file in (home / "dags").iterdir()) == [
            "flights_and_weather.py",
            "weather_delays.py",
        ]

    def test_its_configuration_keeps_everything_inside(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A real service's settings in the environment must not lead the demo to a real database.
        monkeypatch.setenv("TRIGGERER__DATABASE__URL", "postgresql://production/db")
        settings = make_home(tmp_path / "home", bootstrap_servers="h:1").settings
        assert settings.core.home == tmp_path / "home"
        assert settings.core.dags_folder == tmp_path / "home" / "dags"
        assert settings.database.url == f"sqlite:///{tmp_path}/home/triggerer.db"
        assert settings.get_connection("kafka")["bootstrap_servers"] == "h:1"


def test_the_broker_counts_what_it_has_and_what_is_committed() -> None:
    from confluent_kafka import Consumer, TopicPartition

    broker = MockBroker()
    try:
        partitions = broker.create_topic(FLIGHTS)
        assert partitions > 1
        for number in range(100):
            broker.publish(FLIGHTS, str(number), b"x")
        broker.flush(10)
        assert broker.delivered == 100
        assert committed_offsets(broker.bootstrap_servers, FLIGHTS, partitions) == 0
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "triggerer-demo-flights"}
        )
        consumer.commit(offsets=[TopicPartition(FLIGHTS, 0, 7)], asynchronous=False)
        consumer.close()
        assert committed_offsets(broker.bootstrap_servers, FLIGHTS, partitions) == 7
    finally:
        broker.close()


def test_rows_that_are_missing_or_doubled_are_found(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(name: str, ids: list[int], **columns: list[float]) -> None:
        folder = tmp_path / name / "batch=1"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": ids, **columns}), folder / "part.parquet")

    write("flights", [1, 2, 2])
    write("weather", [1])
    sky = {name: [0.0, 0.0] for name in ("temp", "wind_speed", "precip", "visib")}
    write("delays", [1, 2], **sky)
    dataset = Dataset([], flights=3, weather=2, joined=2, summary="")
    wrong = [check for check in parquet_checks(tmp_path, dataset) if not check.holds]
    assert wrong == [
        Check("  distinct rows", "flights", 3, 2),
        Check("rows in Parquet", "weather", 2, 1),
        Check("  distinct rows", "weather", 2, 1),
    ]
