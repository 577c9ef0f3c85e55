"""The DAG files of the benchmarks, written as a user would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

Matching = Literal["everything", "one of 20"]

_WATCHED: Final = """
from triggerer import DAG, Asset, AssetWatcher, task
from watchers.kafka import KafkaEventTrigger


def watched(number):
    trigger = KafkaEventTrigger("{topic}", group_id="{group}", match={match})
    watcher = AssetWatcher("kafka", trigger)
    return Asset(f"x-bench://asset/{{number}}", name=f"asset-{{number}}", watchers=[watcher])


assets = [watched(number) for number in range({watchers})]
"""

_NOTHING: Final = '''
expression = assets[0]
for asset in assets[1:]:
    expression = expression | asset

with DAG("bench", schedule=expression):

    @task
    def nothing():
        """Ends at once."""

    nothing()
'''

_FIRST_ROW: Final = """
import json
import time

with DAG("bench", schedule=assets[0]):

    @task
    def first_row(spark, run_id, triggering_asset_events):
        began = time.monotonic_ns()
        rows = [event.extra["value"] for events in triggering_asset_events.values() for event in events]
        read = time.monotonic_ns()
        row = spark.createDataFrame(rows).first()
        ended = time.monotonic_ns()
        assert row["n"] == rows[0]["n"]
        with open("{stamps}", "a") as file:
            print(json.dumps([run_id, began, read, ended]), file=file)

    first_row()
"""

_START: Final = """
import json
import time

with DAG("bench", schedule=assets[0], max_active_runs=4):

    @task
    def begins(run_id):
        began = time.monotonic_ns()
        with open("{stamps}", "a") as file:
            print(json.dumps([run_id, began]), file=file)

    begins()
"""


def that_does_nothing(
    topic: str, group: str, *, watchers: int = 1, matching: Matching = "everything"
) -> str:
    """Return a DAG file with one DAG on all watched assets, whose runs end at once."""
    return _watched(topic, group, watchers, matching) + _NOTHING


def that_starts_nothing(
    topic: str, group: str, *, watchers: int = 1, matching: Matching = "everything"
) -> str:
    """Return a DAG file with watched assets and no DAG, to measure the path of events alone."""
    return _watched(topic, group, watchers, matching)


def _watched(topic: str, group: str, watchers: int, matching: Matching) -> str:
    # The service takes equal triggers for one trigger. These triggers differ, and all of them match.
    match = '{"w": number}' if matching == "one of 20" else '{"n": {"ge": -1 - number}}'
    if watchers == 1 and matching == "everything":
        match = "None"
    return _WATCHED.format(topic=topic, group=group, watchers=watchers, match=match)


def that_notes_its_start(topic: str, group: str, stamps: Path) -> str:
    """Return a DAG file whose task writes the instant at which it began to `stamps`."""
    return _watched(topic, group, 1, "everything") + _START.format(stamps=stamps)


def that_shows_a_row(topic: str, group: str, stamps: Path) -> str:
    """Return a DAG file whose task takes the first row of its events' DataFrame, and writes the time of each step."""
    watched = _watched(topic, group, 1, "everything")
    return watched + _FIRST_ROW.replace("{stamps}", str(stamps))
