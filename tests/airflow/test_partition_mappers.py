"""Compares our partition mappers with Airflow 3.3.2's.

Airflow's answers were recorded with `TRIGGERER_AIRFLOW_PYTHON=/tmp/airflow-venv/bin/python .venv/bin/python -m
tests.airflow.test_partition_mappers`. The cases use zones without daylight-saving time. On a day on which clocks
change, our keys with a UTC offset differ from Airflow's (docs/reference/partitions.md).
"""

import json
import os
import random
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.asking import ask_airflow
from triggerer.domain.partitions import RollupMapper, downstream_keys, mapper_from_json
from triggerer.errors import InvalidPartitionKey

HERE = Path(__file__).parent
RECORDED = HERE / "partition_answers.json"
PYTHON = os.environ.get("TRIGGERER_AIRFLOW_PYTHON")
WINDOWS = {"Hour": "HourWindow", "Day": "DayWindow", "Week": "WeekWindow", "Month": "MonthWindow",
           "Quarter": "QuarterWindow", "Year": "YearWindow"}  # fmt: skip


def spec(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"type": kind, "arguments": arguments}


def cases(seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    formats = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H", "%Y%m%d %H:%M", "%Y-%m-%dT%H:%M:%S%z")
    found = []
    for period, text, zone in product(WINDOWS, formats, ("UTC", "Asia/Kolkata", "America/Bogota")):
        moments = [
            datetime.fromisoformat("1996-01-01")
            + timedelta(minutes=draw.randrange(40 * 365 * 1440))
            for _ in range(3)
        ]
        keys = [one.strftime(text.replace("%z", "+0000")) for one in moments]
        start = spec(f"StartOf{period}Mapper", timezone=zone, input_format=text)
        found.append({"mapper": start, "keys": [*keys, "nonsense"], "runs": []})
        runs = [downstream_keys(mapper_from_json(start), key)[0] for key in keys]
        window = spec(WINDOWS[period], direction=draw.choice(("forward", "backward")))
        rollup = spec("RollupMapper", upstream_mapper=start, window=window)
        found.append({"mapper": rollup, "keys": keys, "runs": runs})
        if period != "Hour":
            fan = spec(
                "FanOutMapper",
                upstream_mapper=start,
                window=window,
                downstream_mapper=spec("StartOfHourMapper"),
            )
            found.append({"mapper": fan, "keys": keys, "runs": []})
    hour = spec("StartOfHourMapper")
    texts = ["eu", "us", "2024-03-10T10:11:12", "2024-03-10T10:11:12|eu", ""]
    eu, segments = (
        spec("AllowedKeyMapper", allowed_keys=["eu"]),
        spec("SegmentWindow", segments=["a", "b"]),
    )
    fixed = spec("FixedKeyMapper", downstream_key="x")
    plain = [
        spec("IdentityMapper"), eu, fixed,
        spec("ProductMapper", mappers=[hour, eu]),
        spec("ChainMapper", mappers=[hour, spec("StartOfYearMapper", input_format="%Y-%m-%dT%H")]),
        spec("RollupMapper", upstream_mapper=fixed, window=segments),
    ]  # fmt: skip
    found += [{"mapper": mapper, "keys": texts, "runs": ["x"]} for mapper in plain]
    return found


def our_answers(case: dict[str, Any]) -> list[Any]:
    mapper = mapper_from_json(with_defaults(case["mapper"]))
    keys: list[Any] = []
    for key in case["keys"]:
        try:
            keys.append(list(downstream_keys(mapper, key)))
        except InvalidPartitionKey:
            keys.append("refused")
    if not isinstance(mapper, RollupMapper):
        return [keys, None]
    return [keys, [sorted(mapper.to_upstream(run)) for run in case["runs"]]]


def with_defaults(value: dict[str, Any]) -> dict[str, Any]:
    """Add the arguments that our own JSON always has, and Airflow's need not have."""
    arguments = dict(value["arguments"])
    if value["type"] == "RollupMapper":
        arguments.setdefault("wait_policy", spec("WaitForAll"))
    return {**value, "arguments": arguments}


def compare(asked: list[dict[str, Any]], answers: list[Any]) -> None:
    for case, theirs in zip(asked, answers, strict=True):
        assert our_answers(case) == theirs, case


def test_recorded_keys_are_mapped_as_by_airflow() -> None:
    pairs = json.loads(RECORDED.read_text())
    assert len(pairs) > 200
    compare([case for case, _ in pairs], [answers for _, answers in pairs])


@pytest.mark.skipif(
    not PYTHON,
    reason="TRIGGERER_AIRFLOW_PYTHON names no Python with Airflow (see docs/reference/airflow-triggers.md)",
)
def test_fresh_keys_are_mapped_as_by_airflow() -> None:
    assert PYTHON is not None
    for seed in range(5):
        asked = cases(seed)
        compare(asked, ask_airflow(PYTHON, "partition_oracle.py", asked))


if __name__ == "__main__":
    assert PYTHON is not None
    asked = cases(2026)
    pairs = zip(asked, ask_airflow(PYTHON, "partition_oracle.py", asked), strict=True)
    RECORDED.write_text(
        "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in pairs) + "\n]\n"
    )
